"""Limits for what an honest answer leaves when its parent is taken off: from the public noise and the clip alone.

In units of the noise's scale an honest residual is r = s + z: z the noise, independent in every weight, s a step that
the clip bounds. Three statistics are looked at: mean |r| and mean r^2, each with a lower and an upper limit, and
max |r|. No pool is simulated, because the residual does not depend on one; gamma and merging do not enter either.

*Below.* |s + z| is never shorter than |z|, in distribution (Anderson 1955), so lower limits are those of noise alone.
*Above.* What all upper limits let through is a convex set, and the noise has a log-concave density, so the chance to
stay inside is a log-concave function of the step (Prekopa 1973): it is least at a corner of the set of possible steps.
All corners are alike: +-clip in every weight (a bound of each element), or +-clip in one weight and nothing elsewhere
(a bound of the L1 norm). A ball has no corners: for Gaussian noise with a bound of the norm, steps spread evenly over
1, 4, 16, ... weights are tried.

So for every step the share of honest answers turned away is at most what noise alone gets below plus what the longest
step gets above. Where the step is small against the noise, noise alone gets nearly the whole of the share. Where it is
not, noise alone never comes near the upper limits, and so the lower ones get the larger part.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.fast_noise import fill_laplace, fill_normal
from incrowd.drawdiscard.residual_sums import PossibleStep, SumTails, chance_beyond, largest, lower_bounds
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.device import Mechanism

STANDING = 512
"""So many weights stand for more of them where it is counted how often several limits are broken at once."""

RAREST_COUNTED = 1e-3
"""Of a smaller share that is not counted: no two limits are taken to be broken at once."""

FEW = 32
"""Up to so many weights quantiles are those of simulated residuals: so short a sum is coarser than any grid."""

LOWER_PARTS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The parts of the share that the lower limits may get."""

ENOUGH = 0.93
"""So much of the share noise alone should get, if it can."""

_BLOCK = 2**17


class ResidualLimits(NamedTuple):
    """What is let through: low <= mean |r| <= high, the same for mean r^2, and max |r| <= most."""

    low: float
    high: float
    low_square: float
    high_square: float
    most: float


def fixed_limits(mechanism: Mechanism, *, share: float) -> ResidualLimits:
    """The limits that turn away at most this share of honest answers, whatever their steps.

    Guarantee: at most `share` for every step that the mechanism allows, and at least four fifths of it for noise alone.
    The same question has the same answer, always.

    Edge cases: of a share below 0.001 noise alone gets at least a half. With up to 32 weights limits are simulated
    quantiles, good to a fifth of the share; below 0.001 they are bounds, and noise alone gets at least a quarter. Noise
    ``none`` leaves nothing to look at (`ConfigError`).
    """
    return _limits(*_asked(mechanism, share), _longest(mechanism), share)


def noise_limits(mechanism: Mechanism, *, share: float) -> ResidualLimits:
    """The limits of which noise alone breaks each with this chance."""
    gaussian, size = _asked(mechanism, share)
    return _Residuals(gaussian, size, (PossibleStep(0, 0.0),), share).limits(share, share)


def _asked(mechanism: Mechanism, share: float) -> tuple[bool, int]:
    _validate.fraction(share=share)
    if mechanism.noise == "none":
        raise ConfigError(field="noise", value="none", remedy="without noise there is nothing to tell answers by")
    return mechanism.noise == "gaussian", mechanism.size


def _longest(mechanism: Mechanism) -> tuple[PossibleStep, ...]:
    """The worst steps, in units of the noise's scale."""
    length = _rounded_up(mechanism.clip / mechanism.noise_scale)  # so that like mechanisms have one key
    if mechanism.bound == "element":
        return (PossibleStep(mechanism.size, length),)
    if mechanism.noise == "laplace":
        return (PossibleStep(1, length),)
    counts = [4**power for power in range(20) if 4**power < mechanism.size]
    return tuple(PossibleStep(count, length / math.sqrt(count)) for count in (*counts, mechanism.size))


def _rounded_up(ratio: float) -> float:
    """To five digits, unless next to nothing of the last one is lacking."""
    digit = 10.0 ** (math.floor(math.log10(ratio)) - 4)
    return math.ceil(ratio / digit - 0.02) * digit


@lru_cache(maxsize=256)
def _limits(gaussian: bool, size: int, steps: tuple[PossibleStep, ...], share: float) -> ResidualLimits:  # noqa: FBT001 - a cache's key
    noise, stepped = (
        _Residuals(gaussian, size, (PossibleStep(0, 0.0),), share),
        _Residuals(gaussian, size, steps, share),
    )
    parts = iter(LOWER_PARTS)
    while True:
        lower = next(parts)
        below, above = noise.each_below(lower * share), stepped.each_above((1 - lower) * share)
        first, second = noise.limits(below, below), stepped.limits(above, above)
        limits = ResidualLimits(first.low, second.high, first.low_square, second.high_square, second.most)
        at_once = (1 - lower) * share / (3 * above)  # the chance to break any of three, over the sum of their chances
        enough = lower * share + at_once * noise.chance_above(limits) >= ENOUGH * share
        if enough or lower == LOWER_PARTS[-1]:
            return limits


@dataclass(frozen=True)
class _Sampled:
    """Tails of a sample."""

    values: Floats

    def low(self, chance: float) -> float:
        """See `SumTails.low`."""
        return float(np.quantile(self.values, chance))

    def high(self, chance: float) -> float:
        """See `SumTails.high`."""
        return float(np.quantile(self.values, 1 - chance))

    def above(self, mean: float) -> float:
        """See `SumTails.above`."""
        return float((self.values > mean).mean())


_Tails = SumTails | _Sampled


@dataclass(frozen=True)
class _Residuals:
    """Honest residuals of so many weights with one of these steps; the outermost quantiles count."""

    gaussian: bool
    size: int
    steps: tuple[PossibleStep, ...]
    share: float

    def limits(self, below: float, above: float) -> ResidualLimits:
        """Each lower limit is broken with this chance, each upper one with that."""
        (means, squares), most = self._tails, [self._most(above, step) for step in self.steps]
        if self.size <= FEW and self._sample is None:
            low, low_square = lower_bounds(below, gaussian=self.gaussian, size=self.size)
        else:
            low, low_square = (min(one.low(below) for one in tails) for tails in (means, squares))
        high, high_square = (max(one.high(above) for one in tails) for tails in (means, squares))
        return ResidualLimits(low, high, low_square, high_square, max(most))

    def each_below(self, share: float) -> float:
        """The chance for each of the lower limits with which this share breaks one."""
        return share / 2 if self._sample is None else float(np.quantile(self._ranks[:, :2].min(axis=1), share))

    def each_above(self, share: float) -> float:
        """The chance for each of the upper limits with which this share breaks one."""
        return share / 3 if self._sample is None else float(np.quantile(1 - self._ranks.max(axis=1), share))

    def chance_above(self, limits: ResidualLimits) -> float:
        """The chances for each of the upper limits, all together."""
        (means, squares), step = self._tails, self.steps[0]
        beyond = chance_beyond(limits.most, gaussian=self.gaussian, size=self.size, step=step)
        return means[0].above(limits.high) + squares[0].above(limits.high_square) + beyond

    def _most(self, above: float, step: PossibleStep) -> float:
        return largest(above, gaussian=self.gaussian, size=self.size, step=step)

    @cached_property
    def _tails(self) -> tuple[list[_Tails], list[_Tails]]:
        if self._sample is not None and self.size <= FEW:
            return [_Sampled(self._sample[:, 0])], [_Sampled(self._sample[:, 1])]
        means, squares = (
            [SumTails(gaussian=self.gaussian, size=self.size, step=step, power=power) for step in self.steps]
            for power in (1, 2)
        )
        return [*means], [*squares]

    @cached_property
    def _ranks(self) -> Floats:
        """Where each statistic of each sampled residual stands among the others, between 0 and 1."""
        if self._sample is None:
            raise AssertionError("nothing was sampled for so small a share")
        ranks = self._sample.argsort(axis=0).argsort(axis=0)
        places: Floats = (ranks + 0.5) / len(ranks)
        return places

    @cached_property
    def _sample(self) -> Floats | None:
        """The statistics of sampled residuals, [residuals, 3], with the first of the steps."""
        if self.share < RAREST_COUNTED:
            return None
        count = int(min(max(200 / self.share, 20_000), 200_000))
        weights = min(self.size, STANDING if count <= 50_000 else STANDING // 2)
        step = self.steps[0]
        moved = weights if step.weights == self.size else min(step.weights, weights)
        stream = SeededRandomness(seed=0).stream("honest residuals", weights, count, moved)
        fill = fill_normal if self.gaussian else fill_laplace
        rows: NDArray[np.float32] = np.empty((max(1, _BLOCK // weights), weights), np.float32)
        statistics = []
        for _ in range(-(-count // len(rows))):
            fill(stream, rows)
            rows[:, :moved] += np.float32(step.length)
            np.abs(rows, out=rows)
            means, most = rows.mean(axis=1), rows.max(axis=1)
            statistics.append(np.stack([means, np.einsum("ij,ij->i", rows, rows) / weights, most], axis=1))
        sample: Floats = np.concatenate(statistics).astype(np.float64)
        return sample
