"""The guarantee against the three adversaries of Pihur et al. (2018), beside the paper's formulas.

One update moves a weight by at most 1 unit, the sensitivity, and its Laplace noise has scale 1 / epsilon. Answers
overwrite an instance, as in the paper; in a pool that merges answers or lowers steps only adversary I's figure holds.

One weight is enough. A guarantee for a whole model bounds the sum of all moves by 1 unit. Let f_a be the trade-off
between the errors of the best test for a shift by a. For log-concave noise, as every sum of Laplace values is,
f_(a+b)(x) = f_a(1 - f_b(x)). A test of two weights, shifted by a and b, has an error of at least f_a(its level) for
each value of the second weight. f_a is convex and decreasing, so by Jensen's inequality its mean error is at least
f_a(1 - f_b(x)) = f_(a+b)(x).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError

UNITS = ("feature", "model", "l1")

_REACH = 45  # masses farther out than this many roots of the mean are below every float
_ROUNDING = 1e-12  # more than the relative error of every tail probability: added to each delta
_ROUNDING_OF_CHANCES = 1e-15  # more than the error of every chance: added to each
_NEVER = 1e-280  # smaller probabilities count as zero
_PRECISION = 1e-3  # a bound for a random number of updates is at most about this share too large
_CLASSES = 40  # classes of numbers of updates; each counts as its smallest, which hides least


@dataclass(frozen=True)
class Blurred:
    """A shift of at most so many scales of the noise, hidden by a sum of so many standard Laplace values.

    A Laplace value is the difference of two exponential ones, so a sum of T of them is the difference of two waiting
    times for the T-th event of a Poisson process. When one process has its T-th event, the other lacks m events: m is
    negative binomial, the time for m events is a gamma value. The sum is a mixture of gamma values with positive
    weights: nothing cancels, even in the far tail, for up to a thousand million terms.

    Guarantee: `delta` and `epsilon` are upper bounds, from the hockey-stick divergence between the sum and its shift.
    """

    shift: float
    terms: int

    def __post_init__(self) -> None:
        _validate.count(terms=self.terms)

    def delta(self, epsilon: float) -> float:
        """The delta of this epsilon."""
        if epsilon >= self.shift:
            return 0.0
        low, high = self._bracket(lambda x: self._loss(x) >= epsilon)
        place = high if low == high else float(brentq(lambda x: self._loss(x) - epsilon, low, high, rtol=1e-12))
        return self._delta_at(place, epsilon)

    def epsilon(self, delta: float) -> float:
        """The epsilon of this delta."""
        low, high = self._bracket(lambda x: self._delta_at(x, self._loss(x)) <= delta)
        while high - low > 1e-10 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._delta_at(middle, self._loss(middle)) <= delta else (middle, high)
        return min(self.shift, max(0.0, self._loss(high)))

    def density(self, x: float) -> float:
        """The probability density of the sum at x."""
        first, masses = _poisson(abs(x), len(self._missing))
        return float(masses @ self._missing[first : first + len(masses)])

    def tail(self, x: float) -> float:
        """The probability that the sum is more than x."""
        if x < 0:
            return 1 - self.tail(-x)
        first, masses = _poisson(x, len(self._missing))
        return float(masses @ self._missing_more[first : first + len(masses)])

    def _loss(self, x: float) -> float:
        """The privacy loss at x; it grows with x, up to the shift, since the density is log-concave."""
        density = self.density(x)
        return math.log(self.density(x - self.shift) / density) if density > _NEVER else self.shift

    def _delta_at(self, x: float, epsilon: float) -> float:
        """The divergence when x is the value whose loss is epsilon: all larger values are evidence."""
        shifted = self.tail(x - self.shift)
        return max(0.0, shifted - math.exp(epsilon) * self.tail(x)) + _ROUNDING * shifted

    def _bracket(self, enough: Callable[[float], bool]) -> tuple[float, float]:
        """Two values: the larger is enough and the smaller is not, or both are the middle (loss 0)."""
        low = high = self.shift / 2
        step = self.shift + math.sqrt(self.terms)
        while not enough(high):
            low, high, step = high, high + step, 2 * step
        return low, high

    @cached_property
    def _missing(self) -> Floats:
        """The probability that the sum is positive and the other process lacks m events, for m = 1, 2, ..."""
        most = min(self.terms, math.ceil(_REACH * math.sqrt(self.terms)))
        m = np.arange(1.0, most)
        masses = np.cumprod(np.concatenate([[1.0], 2 * (self.terms - m) / (2 * self.terms - m - 1)]))
        masses *= 0.5 / masses.sum()  # the sum is positive with probability 1/2
        return masses

    @cached_property
    def _missing_more(self) -> Floats:
        """The probability that the sum is positive and the other process lacks more than i events, i = 0, 1, ..."""
        more: Floats = np.cumsum(self._missing[::-1])[::-1]
        return more


def _poisson(mean: float, size: int) -> tuple[int, Floats]:
    """The masses of a Poisson distribution at first, first + 1, ... below size."""
    centre = int(mean)
    reach = math.ceil(_REACH * math.sqrt(mean)) + _REACH
    up = np.cumprod(mean / np.arange(centre + 1.0, centre + reach))
    down = np.cumprod(np.arange(float(centre), max(0, centre - reach), -1.0) / max(mean, 1.0))
    masses = np.concatenate([down[::-1], [1.0], up])
    masses /= masses.sum()
    first = centre - len(down)
    return first, masses[: max(0, size - first)]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A pool, the epsilon of one update, and the number of updates since.

    Epsilon is that of one "feature" (weight), of the whole "model", or ("l1") of the whole model under an L1 clip.

    Each later update replaced the ancestor of the opportunist's instance with probability 1/k, and added one noise. So
    1 plus a binomial number of noises hide a contribution; it survives with probability 1/k (lemma 2).

    Guarantee: `opportunist` and `opportunist_delta` bound the knowledge even of an adversary who sees both coins (joint
    convexity of the hockey-stick divergence). As in the paper, each update draws after all earlier ones have arrived,
    and later updates do not depend on the weight. Descendants whose gradients depend on it can repeat it; then only the
    update's epsilon holds, which no bound exceeds.
    """

    instances: int
    epsilon: float
    updates_since: int
    delta: float = 1e-8
    learning_rate: float = 0.001
    clip: float = 1.0
    weights: int = 1
    unit: str = "feature"

    def __post_init__(self) -> None:
        _validate.count(instances=self.instances, weights=self.weights)
        _validate.positive(epsilon=self.epsilon, learning_rate=self.learning_rate, clip=self.clip)
        _validate.natural(updates_since=self.updates_since)
        _validate.fraction(delta=self.delta)
        if self.unit not in UNITS:
            raise ConfigError(field="unit", value=self.unit, remedy=f"give one of {', '.join(UNITS)}")

    def blurred(self, later: int) -> Blurred:
        """A contribution under its noise and `later` more."""
        return Blurred(self.epsilon, 1 + later)

    def opportunist_delta(self, epsilon: float, *, survived: bool = False) -> float:
        """The delta of adversary III; `survived` gives no credit for the chance of a discard."""
        delta = sum(chance * blurred.delta(epsilon) for chance, blurred in self._classes)
        return delta if survived else delta / self.instances

    def opportunist(self, *, survived: bool = False) -> float:
        """The epsilon of adversary III at the situation's delta."""

        def excess(epsilon: float) -> float:
            return math.log(max(self.opportunist_delta(epsilon, survived=survived), _NEVER) / self.delta)

        if excess(0.0) <= 0:
            return 0.0
        high = self.blurred(self.updates_since // self.instances).epsilon(self.delta) + _NEVER
        while excess(high) > 0:
            high = min(1.5 * high, self.epsilon)  # delta is 0 there
        # The search ends on either side; one step up is on the private side, since delta falls with epsilon.
        epsilon = float(brentq(excess, 0.0, high, xtol=_NEVER, rtol=_PRECISION / 2))
        return min(self.epsilon, epsilon * (1 + _PRECISION))

    @cached_property
    def _classes(self) -> list[tuple[float, Blurred]]:
        """The chance of each class of numbers of later updates to the instance, and the least noise in it."""
        trials, chance = self.updates_since, 1 / self.instances
        mean, deviation = trials * chance, math.sqrt(trials * chance * (1 - chance))
        step = max(deviation * 13 / _CLASSES, mean * _PRECISION, 1.0)  # narrower classes would not show
        edges = np.floor(np.arange(mean - 10 * deviation, mean + 3 * deviation + step, step))
        starts = np.array(sorted({0.0, *np.clip(edges, 0, trials)}))
        fewer = betainc(trials - starts + 1, np.maximum(starts, 1), 1 - chance)  # the chance of fewer updates than that
        fewer[0] = 0.0
        chances = np.diff(fewer, append=1.0) + _ROUNDING_OF_CHANCES
        return [(float(share), self.blurred(int(start))) for share, start in zip(chances, starts, strict=True)]


def adversaries(situation: Situation) -> list[dict[str, Any]]:
    """The figures of the three adversaries for one update, their meaning and assumptions, as plain data.

    Guarantee: `epsilon` holds against each adversary for every state of the pool. An audit has shown a larger loss than
    adversary II's other figures (docs/audit.md).
    """
    k, epsilon, weights, delta = situation.instances, situation.epsilon, situation.weights, situation.delta
    spread_out = situation.unit == "model"
    later = situation.updates_since // k
    listener = {
        "adversary": "I, channel listener",
        "sees": "the instance sent to the device and the one that came back",
        "epsilon": epsilon,
        "delta": 0.0,
        "unit": situation.unit,
        "epsilon_per_feature": epsilon / weights if spread_out else epsilon,
        "epsilon_per_model": epsilon * weights if situation.unit == "feature" else epsilon,
        "noise_scale": 2 * situation.learning_rate * situation.clip * (weights if spread_out else 1) / epsilon,
        "meaning": "a guarantee, for one update",
    }
    internal = {
        "adversary": "II, internal threat",
        "sees": "all instances, right after the update",
        "epsilon": epsilon,
        "delta": 0.0,
        "expected_loss": (k - 1) / (2 * k) * epsilon,
        "worst_case_pre_image_present": epsilon / 2 if k > 1 else 0.0,
        "worst_case_pre_image_overwritten": 0.0,
        "meaning": "expected loss over the server's coins, not a DP guarantee; the guarantee is epsilon",
        "assumes": (
            "for all figures but epsilon: all states of the pool before the update are equally likely, which is not "
            "so: an attack on real pools exceeded them"
        ),
    }
    opportunist = {
        "adversary": "III, opportunistic threat",
        "sees": f"one random instance, after {situation.updates_since} more updates to the pool",
        "epsilon": situation.opportunist(),
        "delta": delta,
        "epsilon_if_not_discarded": situation.opportunist(survived=True),
        "updates_to_the_instance": later,
        "epsilon_for_exactly_so_many": situation.blurred(later).epsilon(delta),
        "paper": paper_figures(epsilon=epsilon, later=later, delta=delta),
        "meaning": "a bound over the server's coins and all noises since; the paper's figures are approximations",
        "assumes": (
            "every answer overwrites an instance, with noise of one size (merging and falling steps add less); "
            "each update draws after all earlier ones have arrived (devices in flight together add fewer noises), and "
            "later gradients do not depend on the weight, so that they do not repeat the contribution"
        ),
        "not_covered": "an adversary who sees several instances, or one again; then only adversary I's epsilon holds",
    }
    return [listener, internal, opportunist]


def paper_figures(*, epsilon: float, later: int, delta: float) -> dict[str, float | None]:
    """The approximations of Pihur et al. (2018, lemma 3), with later updates to the instance in place of T.

    "printed" is the lemma's formula. It takes sqrt(2) learning rates for the distance of two updates, though clipping
    to [-1, 1] allows 2, and its solution of a quadratic drops a term. "root" corrects both.
    """
    if later == 0 or delta >= 0.5:
        return {"printed": None, "root": None}
    log = math.log(1 / (2 * delta))
    return {
        "printed": epsilon * math.sqrt(log / (2 * later)),
        "root": epsilon**2 / (2 * later) * (1 + math.sqrt(1 + 4 * later * log / epsilon**2)),
    }
