"""Gaussian noise that is correlated over rounds (DP-FTRL), for federations whose clients take part now and then.

The server publishes running sums A x of the rounds' sums x. With a lower triangular Toeplitz matrix C (its first
column c_0 = 1, c_1, c_2, ... determines it) it releases x + C^-1 z for independent noise z, a function of C x + z. The
promise is that of noise z under the sensitivity of C x, and the error of a running sum is that of A C^-1 z. A good C
lets each round's noise take back a part of the earlier ones. C is the matrix whose square is A, cut off after a few
bands (Choquette-Choo et al. 2023), so that the noise of few rounds is remembered. The error of running sums was within
5 % of what the best C of so many bands has, and all machines have the same C. The whole run is one Gaussian event.

The promise holds on floating point. Call s the sum of a round in whole grid steps, z its fresh noise (whole steps, from
`grid.sample_noise`) and n the correlated noise. A round releases s + n with n = z - r(earlier n). The echo r of the
earlier noise is computed in floating point and rounded to whole steps. An attacker who sees the releases y and
supposes the sums s knows the earlier n = y - s. A round then adds z moved by s - r to this knowledge. Between two
neighbouring suppositions the move differs by exactly (C(s - s'))_t for the true echo, and by at most one step and two
rounding errors a number more. All moves are whole steps, and rounding real Gaussian noise down commutes
with them. So the run is a post-processing of Gaussian mechanisms whose moves, chosen as the run goes, have squares that
add up to at most Delta^2: together one Gaussian mechanism of sensitivity Delta (Denisov et al. 2022; Smith and Thakurta
2022). Delta is the sensitivity of C for contributions of norm `grid.padded(clip_norm)`, plus sqrt(rounds * size) times
the error of r. The padding covers the rounding of the sums in the rounds that a client takes part in; the other rounds
have the error of r as well.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import GaussianDpEvent

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.grid import REACH, SHARE, Purpose, Whole, check_sum, padded, sample_noise
from incrowd.privacy.mechanism.grid import add as on_grid
from incrowd.privacy.mechanism.grid import step as grid_step

if TYPE_CHECKING:
    from incrowd.privacy.ledger.tally import Receipt

NoiseMemory = tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseState:
    """The position of a run's noise: the next round, and its memory, as plain arrays of `size` numbers.

    Private: with the releases it gives the sums away. It needs the care that the contributions get, so it has no repr.
    """

    round: int
    size: int
    memory: NoiseMemory = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise:
    """Gaussian noise on every round's sum, correlated over rounds, for contributions of L2 norm at most clip_norm.

    Guarantee: releasing all rounds costs `event()`, one Gaussian event for the whole run. Neighbours differ by one
    client that leaves its place empty; two rounds of a client are at least `groups` apart, in any pattern. The error of
    `grid.sample_noise` adds at most rounds * size * 2^-42 to epsilon and rounds * size * 2^-61 to delta. The sums may
    depend on earlier releases. A run that goes on from a state releases bit for bit the same as an uninterrupted run,
    given the same streams. Each state may be used for one release only: the event does not cover two.
    """

    noise_multiplier: float
    clip_norm: float
    contributions_bound: int
    rounds: int
    groups: int
    whole_run: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        _validate.count(contributions_bound=self.contributions_bound, rounds=self.rounds, groups=self.groups)

    def event(self) -> GaussianDpEvent:
        """The cost of the whole run."""
        return GaussianDpEvent(self.noise_multiplier)

    @cached_property
    def column(self) -> Floats:
        """The first column of C, which never rises: as many bands as there are groups, and 0 after them."""
        t = np.arange(1, self.rounds)
        return np.concatenate([[1.0], np.cumprod((2 * t - 1) / (2 * t))]) * (np.arange(self.rounds) < self.groups)

    @cached_property
    def sensitivity(self) -> float:
        """The sensitivity that the run's fresh noise has to hide, in clip bounds, without the steps of the grid."""
        return sensitivity(self.column, self.groups)

    @property
    def over_all_rounds(self) -> float:
        """The standard deviation of the sum of all rounds' noise, in clip bounds."""
        left = np.cumsum(inverse(self.column))
        return float(self.noise_multiplier * self.sensitivity * np.linalg.norm(left))

    def init(self, size: int) -> NoiseState:
        """The state before the first round, for sums of so many numbers."""
        _validate.count(size=size)
        return NoiseState(round=0, size=size, memory=())

    def add(
        self, total: Floats | Whole, *, state: NoiseState, receipt: "Receipt", at: Purpose
    ) -> tuple[Whole, NoiseState]:
        """One round's noised sum, and the state for the next round."""
        if state.round >= self.rounds:
            raise ConfigError(field="round", value=state.round, remedy=f"this noise ends after {self.rounds} rounds")
        size = check_sum(total, bound=self.clip_norm, contributions_bound=self.contributions_bound)
        if size != state.size:
            raise DataError(f"a sum of {size} numbers does not fit a state of {state.size}: give the run's state")
        step, scale = self.scale(state.size)
        fresh = sample_noise(scale=scale / step, size=size, stream=receipt.noise_stream(self, *at))
        correlated = fresh - np.rint(self.echo(state.memory, size)).astype(np.int64)
        memory = self.remember(state.memory, correlated.astype(np.float64))
        return on_grid(total, correlated, step=step), NoiseState(round=state.round + 1, size=size, memory=memory)

    def echo(self, memory: NoiseMemory, size: int) -> Floats:
        """The earlier noise's share in this round of C n; the memory holds the latest noise first."""
        total = np.zeros(size)
        for factor, vector in zip(self.column[1:], memory, strict=False):
            total += factor * vector
        return total

    def remember(self, memory: NoiseMemory, noise: Floats) -> NoiseMemory:
        """The memory after this round's noise."""
        return (noise, *memory)[: self.groups - 1]

    @property
    def rounding(self) -> float:
        """A bound on the rounding error of an echo, relative to the largest noise value, with room to spare (a sum of
        products: Higham 2002, section 3.1).
        """
        return 2.0**-52 * min(self.groups, self.rounds) * float(self.column[1:].sum())

    def scale(self, size: int) -> tuple[float, float]:
        """The grid's step for sums of so many numbers, and the standard deviation of the fresh noise of a round."""
        bound = padded(self.clip_norm, contributions_bound=self.contributions_bound)
        numbers = math.sqrt(self.rounds * size)
        exact = self.sensitivity * bound
        largest = 1.1 * REACH * self.noise_multiplier * exact * self._spread + 2 * bound
        error = 2 * largest * self.rounding
        step = grid_step(
            share=SHARE * self.clip_norm / numbers,
            scale=self.noise_multiplier * exact,
            # noise stays below 2^52 steps, so that the memory holds it exactly
            largest_sum=max(self.contributions_bound * self.clip_norm, 2**9 * largest),
        )
        slack = numbers * (step + error)
        if slack > 0.01 * exact:  # `largest` allows for 10 %
            remedy = "the rounding errors of so much noise would show; give a smaller one or a shorter memory"
            raise ConfigError(field="noise_multiplier", value=self.noise_multiplier, remedy=remedy)
        return step, self.noise_multiplier * (exact + slack)

    @cached_property
    def _spread(self) -> float:
        """The largest ratio of the correlated noise to the fresh noise."""
        return float(np.abs(inverse(self.column)).sum())


def sensitivity(column: Floats, apart: int) -> float:
    """The largest L2 norm by which one client can change C x, with contributions of norm 1 so many rounds apart.

    For a column that is not negative and never rises the worst pattern starts in the first round and is as dense as
    allowed (Kalinin and Lampert 2024, theorem 2); the worst contributions then all point the same way. Rounds after
    the last do not count: the matrix ends there.
    """
    total = np.zeros(len(column))
    for start in range(0, len(column), apart):
        total[start:] += column[: len(column) - start]
    return float(np.linalg.norm(total))


def inverse(column: Floats) -> Floats:
    """The first column of C^-1."""
    result = np.zeros(len(column))
    result[0] = 1
    for t in range(1, len(column)):
        result[t] = -(column[1 : t + 1] @ result[:t][::-1])
    return result
