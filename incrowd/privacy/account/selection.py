"""The price of choosing: try a random number of times, keep the best, show nothing else.

A choice among private results reveals more than the chosen one. It is cheap only if the number of attempts is random
and stays secret (Liu and Talwar 2019; Papernot and Steinke 2022): then the best costs two or three times one attempt,
where showing all of them costs the sum. An attempt may first pick its settings at random (`OneOfDpEvent`), so this is
random search over a grid.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray
from scipy.optimize import brentq

from incrowd import _validate
from incrowd._random import Stream
from incrowd.errors import ConfigError
from incrowd.privacy.account.events import OneOfDpEvent, canonical

LAWS: Mapping[str, float] = MappingProxyType({"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf})
"""The shapes with a name; a shape between 0 and infinity is a truncated negative binomial law."""

MOST = 1e9
_LARGEST_DECAY = 60.0


@dataclass(frozen=True, kw_only=True)
class Repetitions:
    """The law of the number of attempts: `mean` of them are expected.

    `shape` 0 is the logarithmic law, 1 the geometric one, infinity the Poisson law; other shapes are truncated negative
    binomial laws (Papernot and Steinke 2022, definition 1). At one mean a smaller shape is cheaper and varies more.

    Guarantee: a draw follows the law that is priced; its mean is at most `mean`.

    Edge cases: a mean of 1 is one attempt without a choice, except under the Poisson law, which may draw none; a mean
    below 1 or above 10^9 and a shape below 0 or, but for infinity, above 10^9 are refused.
    """

    mean: float
    shape: float = LAWS["geometric"]

    def __post_init__(self) -> None:
        _validate.number(mean=self.mean)
        _validate.at_most(MOST, "the largest mean", mean=self.mean)
        if self.mean < 1:
            raise ConfigError(field="mean", value=self.mean, remedy="give a number of at least 1")
        if self.shape != math.inf:
            _validate.non_negative(shape=self.shape)
            _validate.at_most(MOST, "the largest shape but infinity", shape=self.shape)

    def event(self, attempts: Sequence[DpEvent]) -> DpEvent:
        """The event of the best of all attempts, each of which is one of these, chosen without looking at data.

        Edge cases: no attempts are refused.
        """
        different = {canonical(attempt): attempt for attempt in attempts}
        return RepeatAndSelectDpEvent(OneOfDpEvent(tuple(different.values())), float(self.mean), float(self.shape))

    def sample(self, stream: Stream) -> int:
        """The number of attempts, which has to stay secret. Under the Poisson law it may be 0."""
        chance = (float(stream.bits(1)[0]) + 0.5) * 2.0**-64
        attempts, log_probability = self._first
        below = math.exp(log_probability)
        while below < chance and (attempts <= self.mean or log_probability > -70):  # the rest is below any chance
            log_probability += self._log_ratio(attempts)
            attempts += 1
            below += math.exp(log_probability)
        return attempts

    def generating(self, value: float) -> float:
        """The expectation of value^attempts, for a value from 0 to 1: the chance that no attempt succeeds, if each
        fails with probability `value`.
        """
        if self.shape == math.inf:
            return math.exp(self.mean * (value - 1))
        if self._decay == 0:
            return value
        part = -math.log1p(math.expm1(-self._decay) * value)  # ln 1 / (1 - (1 - gamma) value)
        ratio = part * _shrunk(self.shape * part) / (self._decay * _shrunk(self.shape * self._decay))
        return ratio * math.exp(self.shape * (part - self._decay))

    def renyi(self, orders: Sequence[float], once: NDArray[np.float64]) -> NDArray[np.float64]:
        """The Rényi divergences of the best, at rising orders above 1, from those of a single attempt.

        Theorem 2 (negative binomial laws) and theorem 6 (Poisson) of Papernot and Steinke (2022); a divergence never
        falls with its order, so a later bound holds for earlier orders, too.
        """
        if self.shape != math.inf and self._decay == 0:
            return once
        order = np.asarray(orders)
        best = once + math.log(self.mean) / (order - 1)
        if self.shape == math.inf:
            at = [math.log1p(1 / (each - 1)) for each in orders]
            best = best + self.mean * np.array([rdp.compute_delta(orders, once, epsilon)[0] for epsilon in at])
        else:
            best = best + (1 + self.shape) * np.min((1 - 1 / order) * once + self._decay / order)
        lowered: NDArray[np.float64] = np.minimum.accumulate(best[::-1])[::-1]
        return lowered

    @cached_property
    def _decay(self) -> float:
        """The logarithm of 1 / gamma, gamma being the law's parameter; rounded so that the mean is at most `mean`."""
        root: float = brentq(lambda decay: self._mean_at(decay) - self.mean, 0.0, _LARGEST_DECAY, xtol=1e-15)
        step = 2.0**-50
        while self._mean_at(root) > self.mean:
            root *= 1 - step
            step *= 2  # at 1, the mean is 1
        return root

    def _mean_at(self, decay: float) -> float:
        return math.expm1(decay) / (decay * _shrunk(self.shape * decay)) if decay > 1e-15 else 1.0

    @cached_property
    def _first(self) -> tuple[int, float]:
        """The least number of attempts, and the logarithm of its probability."""
        if self.shape == math.inf:
            return 0, -self.mean
        if self._decay == 0:
            return 1, 0.0
        scaled = self.shape * self._decay
        return 1, math.log(-math.expm1(-self._decay)) - scaled - math.log(self._decay * _shrunk(scaled))

    def _log_ratio(self, attempts: int) -> float:
        """The logarithm of how much more probable one attempt more is."""
        if self.shape == math.inf:
            return math.log(self.mean) + math.log(1 / (attempts + 1))
        return math.log(-math.expm1(-self._decay)) + math.log((attempts + self.shape) / (attempts + 1))


def _shrunk(value: float) -> float:
    """(1 - e^-value) / value, which is 1 at 0."""
    return -math.expm1(-value) / value if value else 1.0
