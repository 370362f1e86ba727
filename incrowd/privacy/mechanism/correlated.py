"""Noise that is correlated over rounds (DP-FTRL), for federations in which every client takes part now and then.

The whole run is one Gaussian event. Which correlation is good, and what it costs, is in
`incrowd.privacy.mechanism.factorisation`.

Why the promise holds on floating point. Call s the sum of a round in whole grid steps, z its fresh noise (whole steps,
from `grid.sample_noise`) and n the correlated noise. A round releases s + n with n = z - r(earlier n), where r is the
echo of the earlier noise, computed in floating point and rounded to whole steps. Whoever sees the releases y and
supposes the sums s knows the earlier n = y - s, so what a round adds to their knowledge is z moved by s - r. Between
two neighbouring suppositions that move differs by exactly (C(s - s'))_t if r were the true echo, and by at most one
step and two rounding errors a number more. All moves are whole steps, and rounding real Gaussian noise down commutes
with them, so the run is a post-processing of Gaussian mechanisms whose moves, chosen as the run goes, have squares that
add up to at most Delta^2: together one Gaussian mechanism of sensitivity Delta (Denisov et al. 2022; Smith and Thakurta
2022). Delta is the sensitivity of C for contributions of norm `noise.padded(clip_norm)`, which covers the rounding of
the sums in the rounds that a client takes part in, plus sqrt(rounds * size) times the error of r, which the other
rounds have as well.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from dp_accounting import GaussianDpEvent

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.account.calibrate import smallest_noise
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism import factorisation, grid, noise
from incrowd.privacy.mechanism.factorisation import NoiseMemory, Participation, StrategyMatrix
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.noise import Purpose


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseState:
    """Where the noise of a run stands: the next round, and what to remember, as plain arrays of `size` numbers.

    Private: with the releases it gives the sums away. It needs the care that the contributions get, so it has no repr.
    """

    round: int
    size: int
    memory: NoiseMemory = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise:
    """Gaussian noise on every round's sum, correlated by a strategy, for contributions of L2 norm at most clip_norm.

    Guarantee: releasing all rounds costs `event()`, one Gaussian event for the whole run, where one client contributes
    or leaves its place empty, as long as no client takes part more often than `participation` says, up to what
    `grid.sample_noise` allows, which adds at most rounds * size * 2^-42 to epsilon and rounds * size * 2^-61 to delta.
    The sums may depend on earlier releases. A run that goes on from a state releases bit for bit what the uninterrupted
    run would, given the same streams.

    Edge cases: a round beyond the last, a sum of another size than the state's, and a sum that is not finite or larger
    than contributions_bound contributions can make it, are refused; so is noise too extreme for the grid. A state is
    not changed by its use, but each may be used for one release only: two from one state are not covered by the event.
    """

    noise_multiplier: float
    clip_norm: float
    contributions_bound: int
    participation: Participation
    strategy: StrategyMatrix
    relation: Relation = field(default=Relation.REPLACE_SPECIAL, init=False)
    whole_run: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        _validate.count(contributions_bound=self.contributions_bound)

    def event(self) -> GaussianDpEvent:
        """What the whole run costs."""
        return GaussianDpEvent(self.noise_multiplier)

    def calibrate(self, budget: Budget) -> "CorrelatedNoise":
        """The same noise with the least multiplier that keeps the whole run to the budget."""
        least = smallest_noise(GaussianDpEvent, budget=budget, relation=self.relation)
        return replace(self, noise_multiplier=least)

    @property
    def improvement(self) -> float:
        """How many times smaller than with independent noise the typical error of the running sums is."""
        return factorisation.improvement(self._column, self.participation)

    @cached_property
    def sensitivity(self) -> float:
        """What the run's fresh noise has to hide, in clip bounds; the steps of floating point not counted."""
        return factorisation.sensitivity(self._column, self.participation)

    @property
    def over_all_rounds(self) -> float:
        """The standard deviation of the noise of all rounds together, in clip bounds: what the first round's noise left
        after all that took it back, and so on.
        """
        left = np.cumsum(factorisation.inverse(self._column))
        return float(self.noise_multiplier * self.sensitivity * np.linalg.norm(left))

    def init(self, size: int) -> NoiseState:
        """The state before the first round, for sums of so many numbers."""
        _validate.count(size=size)
        return NoiseState(round=0, size=size, memory=self.strategy.start(size))

    def add(
        self, total: Floats | Whole, *, state: NoiseState, receipt: Receipt, at: Purpose
    ) -> tuple[Whole, NoiseState]:
        """One round's noised sum, and the state for the next round."""
        if state.round >= self.participation.rounds:
            rounds = self.participation.rounds
            raise ConfigError(field="round", value=state.round, remedy=f"this noise ends after {rounds} rounds")
        size = noise.check_sum(total, bound=self.clip_norm, contributions_bound=self.contributions_bound)
        if size != state.size:
            raise DataError(f"a sum of {size} numbers does not fit a state of {state.size}: give the run's state")
        step, scale = self.scale(state.size)
        fresh = grid.sample_noise(grid.NORMAL, scale=scale / step, size=size, stream=receipt.noise_stream(self, *at))
        echo = self.strategy.echo(state.memory, state.size)
        correlated = fresh - np.rint(echo, out=echo).astype(np.int64)
        memory = self.strategy.remember(state.memory, correlated.astype(np.float64))
        return grid.add(total, correlated, step=step), NoiseState(round=state.round + 1, size=size, memory=memory)

    def scale(self, size: int) -> tuple[float, float]:
        """The grid's step for sums of so many numbers, and the standard deviation of the fresh noise of a round."""
        bound = noise.padded(self.clip_norm, contributions_bound=self.contributions_bound)
        numbers = math.sqrt(self.participation.rounds * size)
        exact = self.sensitivity * bound
        largest = 1.1 * grid.NORMAL.reach * self.noise_multiplier * exact * self._spread + 2 * bound
        error = 2 * largest * self.strategy.rounding(self.participation.rounds)
        step = grid.step(
            share=grid.SHARE * self.clip_norm / numbers,
            scale=self.noise_multiplier * exact,
            # noise stays below 2^52 steps, so that the memory holds it exactly
            largest_sum=max(self.contributions_bound * self.clip_norm, 2**9 * largest),
        )
        slack = numbers * (step + error)
        if slack > 0.01 * exact:  # `largest` allows for 10 %
            raise ConfigError(
                field="noise_multiplier",
                value=self.noise_multiplier,
                remedy="the rounding errors of so much noise would show; give a smaller one or a shorter memory",
            )
        return step, self.noise_multiplier * (exact + slack)

    @cached_property
    def _column(self) -> Floats:
        return self.strategy.column(self.participation.rounds)

    @cached_property
    def _spread(self) -> float:
        """How many times larger than the fresh noise the correlated noise can be."""
        return float(np.abs(factorisation.inverse(self._column)).sum())
