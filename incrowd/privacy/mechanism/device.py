"""The bound on a device's gradient, and the noise that hides it in the instance that the device sends back.

Neighbours are any two tables that a device may have, since all of its examples may be replaced: noise covers twice the
bound (docs/draw-and-discard.md has the table). Noise ``direction`` adds nothing: it chooses a direction for the model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, Integers
from incrowd.errors import AccountingError, BudgetExceeded, ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.account.calibrate import smallest_noise
from incrowd.privacy.account.events import PureDpEvent
from incrowd.privacy.mechanism.clipping import ROUNDED_UP, Clip, ElementwiseClip, FixedClip, clip_rows
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole
from incrowd.privacy.mechanism.whole_noise import ChosenDirection, WholeLaplace

if TYPE_CHECKING:
    from incrowd.privacy.ledger.tally import Draws, Receipt

Unit = Literal["feature", "model"]
NoiseName = Literal["laplace", "gaussian", "direction", "none"]

RELATION = Relation.REPLACE_ONE
"""Neighbours are any two tables of one device."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The bound and the noise for a gradient of so many numbers.

    Guarantee: the release of a `Contribution` is epsilon-differentially private (Laplace noise, directions) or
    (epsilon, delta)-differentially private (Gaussian noise, by the analytic mechanism) about everything in the
    device's table: per `feature` each released number alone, per `model` all of them together. For Laplace noise and
    directions that is exact (`incrowd.privacy.mechanism.whole_noise`). Gaussian noise is drawn on a public grid
    (`incrowd.privacy.mechanism.grid`), which adds at most 2^-42 a number to epsilon.

    `repeats` says in how many of the numbers one thing of the table, say a column, may appear again. A price per
    feature counts it that many times, and no more than all numbers together. Noise ``none`` is for simulations: it has
    no event, and nothing can be released through it.
    """

    size: int
    clip: float
    epsilon: float
    delta: float | None = None
    noise: NoiseName = "laplace"
    privacy: Unit = "model"
    bound: Literal["element", "norm"] = "element"
    repeats: int = 1

    def __post_init__(self) -> None:
        _validate.count(size=self.size, repeats=self.repeats)
        _validate.positive(clip=self.clip, epsilon=self.epsilon)
        if (self.delta is not None) != (self.noise == "gaussian"):
            raise ConfigError(field="delta", value=self.delta, remedy="give one with Gaussian noise, and only with it")
        if self.delta is not None:
            _validate.fraction(delta=self.delta)
        if self.privacy == "feature" and self.bound == "norm":
            raise ConfigError(field="bound", value="norm", remedy="a norm bounds a whole model; per feature: element")
        if self.noise == "direction" and (self.privacy, self.bound) != ("model", "norm"):
            remedy = "a direction is of the whole model, with a norm as its bound"
            raise ConfigError(field="noise", value="direction", remedy=remedy)
        if not 1e-100 < self.epsilon < 1e100:
            raise ConfigError(field="epsilon", value=self.epsilon, remedy="give an epsilon nearer 1")
        drawn = self._drawn  # refused now, rather than after the payment
        if isinstance(drawn, GaussianNoise):
            drawn.step(self.size, contributions_bound=1)

    @cached_property
    def choice(self) -> ChosenDirection:
        """The choice of a direction."""
        return ChosenDirection.fitting(size=self.size, clip=self.clip, epsilon=self.epsilon)

    @cached_property
    def whole(self) -> WholeLaplace:
        """The whole numbers of Laplace noise."""
        distances = self.size if self.privacy == "model" and self.bound == "element" else 1
        return WholeLaplace.fitting(
            size=self.size, clip=self.clip, epsilon=self.epsilon, distances=distances, joint=self.bound == "norm"
        )

    @property
    def _drawn(self) -> GaussianNoise | WholeLaplace | ChosenDirection | None:
        """The noise that a receipt has to pay for."""
        if self.noise == "gaussian":
            norm = self.clipping.clip_norm
            return GaussianNoise(noise_multiplier=self.noise_scale / norm, clip_norm=norm)
        if self.noise == "laplace":
            return self.whole
        return self.choice if self.noise == "direction" else None

    @cached_property
    def clipping(self) -> Clip:
        """The bound of Gaussian noise, in floating point."""
        if self.bound == "element":
            return ElementwiseClip(limit=self.clip, size=self.size)
        return FixedClip(clip_norm=self.clip)

    def clipped(self, gradient: NDArray[Any]) -> Floats:
        """A gradient within the bound in floating point, for Gaussian noise and for simulations. Private."""
        if self.bound == "element" or self.noise == "gaussian":
            clipped: Floats = clip_rows(self.clipping, gradient).rows[0]
            return clipped
        length = float(np.abs(gradient).sum())
        bounded: Floats = gradient.astype(np.float64) * (self.clip / max(self.clip, length))
        return bounded if math.isfinite(length) else np.zeros(self.size)

    @cached_property
    def multiplier(self) -> float:
        """The noise's scale (for Gaussian noise its standard deviation), divided by the sensitivity; rounded up."""
        if self.delta is None:
            nearest = 1 / self.epsilon
            exact = 1 / Fraction(self.epsilon)
            return nearest if nearest >= exact else math.nextafter(nearest, math.inf)
        try:
            return _smallest_gaussian(Budget(epsilon=self.epsilon, delta=self.delta))
        except (AccountingError, BudgetExceeded) as error:
            remedy = f"no noise is known for it: {error}"
            raise ConfigError(field="epsilon", value=self.epsilon, remedy=remedy) from error

    @cached_property
    def noise_scale(self) -> float:
        """The scale of the noise on each number of the gradient; without noise, that of the Laplace noise left out.

        For a direction it is the size of each number.
        """
        if self.noise == "direction":
            return self.choice.length * self.choice.step
        if self.noise == "laplace":
            return self.whole.scale * self.whole.step
        return self.multiplier * self._sensitivity(self.privacy)

    @property
    def noise_variance(self) -> float:
        """The variance of the noise on each number of the gradient; see `noise_scale`."""
        if self.noise == "laplace":
            return self.whole.variance * self.whole.step**2
        return (2 if self.noise == "none" else 1) * self.noise_scale**2

    def event(self, unit: Unit) -> DpEvent:
        """The cost of one contribution per unit: each feature of a column in all numbers that repeat it, or the whole
        model.
        """
        if self.noise == "direction":
            return PureDpEvent(self.epsilon)
        own, charged = self._sensitivity(self.privacy), self._charged(unit)
        relative = self.multiplier if own == charged else self.multiplier * own / charged  # its own without rounding
        if self.noise == "none":
            raise ConfigError(field="noise", value="none", remedy="nothing private may be released without noise")
        return GaussianDpEvent(relative) if self.noise == "gaussian" else LaplaceDpEvent(relative)

    @property
    def pays_for(self) -> "Draws":
        """The draws that a charge of a contribution pays for."""
        return () if self._drawn is None else ((self._drawn, 1),)

    def bounded(self, gradient: NDArray[Any]) -> Floats | Integers:
        """A gradient within the bound: whole numbers for Laplace noise and directions. Private."""
        drawn = self._drawn
        if isinstance(drawn, WholeLaplace | ChosenDirection):
            return drawn.bounded(gradient.astype(np.float64))
        return self.clipped(gradient)

    def noised(self, bounded: Floats | Integers, receipt: "Receipt") -> Whole:
        """A bounded gradient plus noise: whole steps of a public grid, and their value."""
        at, drawn = ("noise", receipt.entry.position), self._drawn
        if isinstance(drawn, WholeLaplace | ChosenDirection):
            return drawn.noised(bounded.astype(np.int64), receipt=receipt, at=at)
        if drawn is None:
            raise ConfigError(field="noise", value="none", remedy="nothing private may be released without noise")
        return drawn.add(bounded.astype(np.float64), receipt=receipt, at=at, contributions_bound=1)

    def describe(self) -> str:
        """One sentence for people: the unit of protection, and its epsilon."""
        if self.noise == "none":
            return "No noise is added: nothing is private."
        private = f"private with epsilon = {self.epsilon:.4g}" + (
            "" if self.delta is None else f", delta = {self.delta:g}"
        )
        if self.privacy == "feature":
            again = "" if self.repeats == 1 else f" (one column is in up to {min(self.repeats, self.size)} of them)"
            whole: Any = self.event("model")
            most = f"epsilon = {self.size * self.epsilon:.4g}"
            if self.noise == "gaussian":
                most = f"noise of {whole.noise_multiplier:.3g} times the sensitivity of the whole"
            return (
                f"Each of the {self.size} released numbers, on its own, is {private}; someone who reads all of "
                f"them{again} learns more, up to {most}."
            )
        return f"All {self.size} released numbers together are {private}: {self._how()}."

    def _how(self) -> str:
        if self.noise == "direction":
            return (
                f"of {self.choice.candidates} random directions a device names the one that its gradient points along "
                f"most, or, with a chance of {1 - self.choice.honest:.2g}, any other"
            )
        if self.bound == "norm":
            return f"the gradient's {'L2' if self.noise == 'gaussian' else 'L1'} norm is bounded by {self.clip:g}"
        root = "the square root of " if self.noise == "gaussian" else ""
        return f"the noise is scaled by {root}the number of weights"

    def _charged(self, unit: Unit) -> float:
        """The farthest that a unit may move the gradient, in all numbers that repeat it."""
        if unit == "model" or self.bound == "norm":
            return self._sensitivity("model")
        times = math.sqrt(self.repeats) if self.noise == "gaussian" else self.repeats
        return min(times * self._sensitivity("feature"), self._sensitivity("model"))

    def _sensitivity(self, unit: Unit) -> float:
        """The farthest that the gradient may move: one number of it or (in the norm of the noise) all of it."""
        if unit == "feature" or self.bound == "norm":
            return 2 * self.clip
        if self.noise == "gaussian":
            return 2 * self.clipping.clip_norm
        return 2 * (self.clip * self.size * ROUNDED_UP)


class Contribution:
    """One device's bounded gradient. It is private, and held only until it is released.

    Guarantee: `release` charges first and then draws the noise; the content has no other way out, and this one once.
    Numbers that are not finite count as zero (for Gaussian noise the whole gradient does then).
    """

    def __init__(self, mechanism: Mechanism, gradient: NDArray[Any]) -> None:
        if gradient.shape != (mechanism.size,):
            raise DataError(f"a gradient of shape {gradient.shape} does not fit {mechanism.size} weights")
        self._mechanism = mechanism
        self._bounded: Floats | Integers | None = mechanism.bounded(gradient)

    def release(self, *, charge: "Callable[[Mechanism], Receipt]") -> Whole:
        """The noised gradient, paid for by `charge`: whole steps, and the value of a step."""
        if self._bounded is None:
            raise ConfigError(field="contribution", value="released", remedy="a contribution is released once")
        receipt = charge(self._mechanism)
        bounded, self._bounded = self._bounded, None
        return self._mechanism.noised(bounded, receipt)


@lru_cache(maxsize=256)
def _smallest_gaussian(budget: Budget) -> float:
    """The least Gaussian noise. Every contribution needs it, and the search takes longer than everything else."""
    return smallest_noise(GaussianDpEvent, budget=budget, relation=RELATION)
