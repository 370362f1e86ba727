"""What draw and discard promises against the three adversaries of Pihur et al. (2018), exactly, beside their formulas.

| adversary           | sees                                           | figure                                        |
| ------------------- | ---------------------------------------------- | --------------------------------------------- |
| I, channel listener | the instance sent to a device and the one back | epsilon: the noise was calibrated to it       |
| II, internal threat | all k instances, right after an update         | an *expected* loss of (k - 1) / (2 k) epsilon |
| III, opportunistic  | one random instance, some updates later        | (epsilon, delta): a bound, computed exactly   |

Everything is stated in units of the sensitivity, so learning rate and clip matter for the noise that a device adds and
for nothing else here: one update moves a weight by at most 1 unit, and its Laplace noise has scale 1 / epsilon.
Answers overwrite an instance, as in the paper: where they are merged, or steps fall, only adversary I's figure holds.

**Why one weight is enough.** Where the promise is about a whole model, an update moves many weights, by at most 1 unit
added up over all of them. The figures for one weight that moves by 1 unit bound those for any such split. Let f_a be
the trade-off between the errors of the best test for a shift by a. For noise whose density is log-concave, as that of
every sum of Laplace values, f_(a+b)(x) = f_a(1 - f_b(x)). A test that sees two weights, shifted by a and b, has for
each value of the second an error of at least f_a(its level); f_a is convex and decreasing, so by Jensen's inequality
its error on average is at least f_a(1 - f_b(x)) = f_(a+b)(x).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.privacy.account.laplace_sum import LaplaceSum

UNITS = ("feature", "model", "l1")

_ROUNDING = 1e-12
"""More than the relative error of every tail probability here: added to each delta, so that it stays a bound."""

_NEVER = 1e-280
"""What is less probable than this is not looked at."""

_ROUNDING_OF_CHANCES = 1e-15
"""More than the error of every chance here: added to each."""

_PRECISION = 1e-3
"""Bounds for a random number of updates are rounded up by about this share."""

_CLASSES = 40
"""So many classes of numbers of updates; each is counted as its smallest, which hides least."""


@dataclass(frozen=True)
class Blurred:
    """A number that moved by at most 1 / epsilon of the noise's scale, under a sum of Laplace values.

    Guarantee: `delta` and `epsilon` are upper bounds (from the hockey-stick divergence between the sum and its shift),
    for every number of terms, and above the truth by less than a part in a thousand where delta is at least 1e-9.

    Edge cases: with one term epsilon is that of the Laplace mechanism; no bound is ever above it, because what is added
    later can only hide. A delta below 1e-280 may be given as 0.
    """

    shift: float
    noises: LaplaceSum

    def delta(self, epsilon: float) -> float:
        """A delta with which the pair (epsilon, delta) holds."""
        if epsilon >= self.shift:
            return 0.0
        low, high = self._bracket(lambda x: self._loss(x) >= epsilon)
        place = high if low == high else float(brentq(lambda x: self._loss(x) - epsilon, low, high, rtol=1e-12))
        return self._delta_at(place, epsilon)

    def epsilon(self, delta: float) -> float:
        """An epsilon with which the pair (epsilon, delta) holds."""
        low, high = self._bracket(lambda x: self._delta_at(x, self._loss(x)) <= delta)
        while high - low > 1e-10 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._delta_at(middle, self._loss(middle)) <= delta else (middle, high)
        return min(self.shift, max(0.0, self._loss(high)))

    def _loss(self, x: float) -> float:
        """The privacy loss of seeing x: it grows with x, up to the shift, since the density is log-concave."""
        density = self.noises.density(x)
        return math.log(self.noises.density(x - self.shift) / density) if density > _NEVER else self.shift

    def _delta_at(self, x: float, epsilon: float) -> float:
        """The divergence, where x is the value whose loss is epsilon: all larger ones are evidence."""
        shifted = self.noises.tail(x - self.shift)
        return max(0.0, shifted - math.exp(epsilon) * self.noises.tail(x)) + _ROUNDING * shifted

    def _bracket(self, enough: Callable[[float], bool]) -> tuple[float, float]:
        """Two values; at the larger it is enough, at the smaller it is not, or they are both the middle (loss 0)."""
        low = high = self.shift / 2
        step = self.shift + math.sqrt(self.noises.terms)
        while not enough(high):
            low, high, step = high, high + step, 2 * step
        return low, high


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """What adversary III knows of one contribution: one instance, drawn at random after some updates to the pool.

    Looking back in time, each update has replaced the ancestor of that instance with probability 1/k, and has then
    added one noise. So the number of noises that hide a contribution is 1 (its own) plus a binomial number, whether or
    not the instance descends from it, which it does with probability exactly 1/k (lemma 2, at any time).

    Guarantee: `epsilon` and `delta` bound what is learned even by someone who knows both of these coins (joint
    convexity of the hockey-stick divergence), given that each update draws after all earlier ones have arrived, and
    that later updates do not depend on the weight in question, as Pihur et al. assume, too. Descendants whose gradients
    do depend on it can repeat it; then only the update's own epsilon holds.

    Edge cases: no updates since: the contribution's own noise, and a chance of 1 - 1/k that another instance was drawn.
    No bound is above the update's own epsilon.
    """

    instances: int
    epsilon_per_update: float
    updates_since: int

    def __post_init__(self) -> None:
        _validate.count(instances=self.instances)
        _validate.positive(epsilon_per_update=self.epsilon_per_update)
        _validate.natural(updates_since=self.updates_since)

    def blurred(self, later: int) -> Blurred:
        """A contribution under its own noise and so many later ones."""
        return Blurred(self.epsilon_per_update, LaplaceSum(1 + later))

    def delta(self, epsilon: float, *, survived: bool = False) -> float:
        """A delta with which the pair holds; `survived` gives no credit for the chance that it was discarded."""
        delta = sum(chance * blurred.delta(epsilon) for chance, blurred in self._classes)
        return delta if survived else delta / self.instances

    def epsilon(self, delta: float, *, survived: bool = False) -> float:
        """An epsilon with which the pair holds."""
        _validate.fraction(delta=delta)
        excess = partial(self._excess, wanted=delta, survived=survived)
        if excess(0.0) <= 0:
            return 0.0
        high = self.blurred(self.updates_since // self.instances).epsilon(delta) + _NEVER
        while excess(high) > 0:
            high = min(1.5 * high, self.epsilon_per_update)  # where delta is 0
        # The search ends on either side; one step up is on the private side, since delta falls with epsilon.
        epsilon = float(brentq(excess, 0.0, high, xtol=_NEVER, rtol=_PRECISION / 2))
        return min(self.epsilon_per_update, epsilon * (1 + _PRECISION))

    def _excess(self, epsilon: float, *, wanted: float, survived: bool) -> float:
        return math.log(max(self.delta(epsilon, survived=survived), _NEVER) / wanted)

    @cached_property
    def _classes(self) -> list[tuple[float, Blurred]]:
        """The chance of each class of numbers of later updates to the instance, and the least that hides in it."""
        trials, chance = self.updates_since, 1 / self.instances
        mean, deviation = trials * chance, math.sqrt(trials * chance * (1 - chance))
        step = max(deviation * 13 / _CLASSES, mean * _PRECISION, 1.0)  # narrower classes would not show
        edges = np.floor(np.arange(mean - 10 * deviation, mean + 3 * deviation + step, step))
        starts = np.array(sorted({0.0, *np.clip(edges, 0, trials)}))
        fewer = betainc(trials - starts + 1, np.maximum(starts, 1), 1 - chance)  # the chance of fewer updates than that
        fewer[0] = 0.0
        chances = np.diff(fewer, append=1.0) + _ROUNDING_OF_CHANCES
        return [(float(share), self.blurred(int(start))) for share, start in zip(chances, starts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A pool, what one update promises, and how long ago the update was.

    `unit` is what epsilon is about: one "feature" (weight); the whole "model", because the noise grows with the number
    of weights; or the whole model, because clipping bounds the sum of all absolute values ("l1").

    Edge cases: one instance: adversary II has no pre-image to look for, and adversary III sees the very instance.
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


def adversaries(situation: Situation) -> list[dict[str, Any]]:
    """What each of the three learns of one update, as plain data: figures, what they mean, and what they assume."""
    return [channel_listener(situation), internal_threat(situation), opportunistic_threat(situation)]


def channel_listener(situation: Situation) -> dict[str, Any]:
    """Adversary I: what local differential privacy is about.

    Guarantee: epsilon holds against everyone, at delta 0: whatever else is seen is computed from what the device sends.
    """
    epsilon, weights = situation.epsilon, situation.weights
    spread_out = situation.unit == "model"
    return {
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


def internal_threat(situation: Situation) -> dict[str, Any]:
    """Adversary II: the figure of Pihur et al. (2018, lemma 1), and what it is not.

    Guarantee: `epsilon` holds for every state of the pool. The others hold for someone to whom every state of the pool
    before the update is equally likely, as the lemma has it; the average over the server's coins is no guarantee. Real
    pools are not like that: their instances descend from each other, which tells who is new, and more than
    `worst_case_pre_image_present` was proven to be lost to one look (docs/audit.md).

    Edge cases: who knew the instances before the update finds the new one, and its pre-image if that was one of several
    equal instances: then only `epsilon` holds, and it is reached.
    """
    k, epsilon = situation.instances, situation.epsilon
    return {
        "adversary": "II, internal threat",
        "sees": "all instances, right after the update",
        "epsilon": epsilon,
        "delta": 0.0,
        "expected_loss": (k - 1) / (2 * k) * epsilon,
        "worst_case_pre_image_present": epsilon / 2 if k > 1 else 0.0,
        "worst_case_pre_image_overwritten": 0.0,
        "meaning": "expected loss over the server's coins, not a DP guarantee; the guarantee is epsilon",
        "assumes": (
            "for all figures but epsilon: all states of the pool before the update are as likely, which is not so: "
            "an attack on pools as they are got beyond them"
        ),
    }


def opportunistic_threat(situation: Situation) -> dict[str, Any]:
    """Adversary III: bounds, and beside them what the paper's lemma 3 states, as printed and put right.

    Guarantee: `epsilon` is `Opportunity.epsilon`; the paper's figures are approximations by a normal distribution.
    """
    k, delta = situation.instances, situation.delta
    seen = Opportunity(instances=k, epsilon_per_update=situation.epsilon, updates_since=situation.updates_since)
    later = situation.updates_since // k
    return {
        "adversary": "III, opportunistic threat",
        "sees": f"one random instance, after {situation.updates_since} more updates to the pool",
        "epsilon": seen.epsilon(delta),
        "delta": delta,
        "epsilon_if_not_discarded": seen.epsilon(delta, survived=True),
        "updates_to_the_instance": later,
        "epsilon_for_exactly_so_many": seen.blurred(later).epsilon(delta),
        "paper": paper_figures(epsilon=situation.epsilon, later=later, delta=delta),
        "meaning": "a bound over the server's coins and all noises since; the paper's figures are approximations",
        "assumes": (
            "every answer overwrites an instance, with noise of one size (merging and falling steps add less); "
            "each update draws after all earlier ones have arrived (devices in flight together add fewer noises), and "
            "later gradients do not depend on the weight, so that they do not repeat the contribution"
        ),
        "not_covered": "whoever sees several instances, or one again; for them only adversary I's epsilon holds",
    }


def paper_figures(*, epsilon: float, later: int, delta: float) -> dict[str, float | None]:
    """The approximations of Pihur et al. (2018, lemma 3), with later updates to the instance in place of T.

    "printed" is the lemma's formula. Its distance of two updates of a weight is sqrt(2) learning rates, where clipping
    to [-1, 1] allows 2: "distance" has 2. Its solution of a quadratic drops a term: "root" has both put right.

    Edge cases: without later updates, or where delta is at least 1/2, the lemma has nothing to say.
    """
    if later == 0 or delta >= 0.5:
        return {"printed": None, "distance": None, "root": None}
    log = math.log(1 / (2 * delta))
    return {
        "printed": epsilon * math.sqrt(log / (2 * later)),
        "distance": epsilon * math.sqrt(log / later),
        "root": epsilon**2 / (2 * later) * (1 + math.sqrt(1 + 4 * later * log / epsilon**2)),
    }
