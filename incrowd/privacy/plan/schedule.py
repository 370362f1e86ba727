"""How cohort and noise change over the rounds: public, decided before the first round."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from incrowd import _validate
from incrowd.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Step:
    """A number of equal rounds: their cohort and the multiplier of their noise.

    Before calibration the noise multipliers of a schedule are relative: calibration scales all of them by one factor.
    """

    rounds: int
    cohort: float
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds)
        _validate.positive(cohort=self.cohort, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Schedule:
    """The rounds of a run, as steps of equal rounds.

    Edge cases: a schedule without rounds is refused; equal steps side by side become one.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ConfigError(field="steps", value=self.steps, remedy="give at least one round")
        merged: list[Step] = []
        for step in self.steps:
            if merged and replace(merged[-1], rounds=step.rounds) == step:
                merged[-1] = replace(step, rounds=merged[-1].rounds + step.rounds)
            else:
                merged.append(step)
        object.__setattr__(self, "steps", tuple(merged))

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return sum(step.rounds for step in self.steps)

    @property
    def communications(self) -> float:
        """How many contributions are expected over all rounds."""
        return sum(step.rounds * step.cohort for step in self.steps)

    def at(self, round: int) -> Step:
        """The step that a round (from 0) belongs to."""
        place = round
        for step in self.steps:
            if 0 <= place < step.rounds:
                return step
            place -= step.rounds
        raise ConfigError(field="round", value=round, remedy=f"give a round from 0 to {self.rounds - 1}")

    def scaled(self, factor: float) -> "Schedule":
        """The same schedule with every noise multiplier times a factor."""
        return Schedule(tuple(replace(step, noise_multiplier=factor * step.noise_multiplier) for step in self.steps))


def constant(*, rounds: int, cohort: float) -> Schedule:
    """The same cohort and noise in every round."""
    return Schedule((Step(rounds=rounds, cohort=cohort),))


def growing(*, rounds: int, first_cohort: float, last_cohort: float, steps: int = 5) -> Schedule:
    """A cohort m_t that grows while noise_t^2 / m_t stays constant (Geyer, Klein, Nabi 2017, section 3).

    Early updates need few clients to point the right way and late ones need many; at a constant ratio the distortion of
    the mean changes only through m_t. Cohorts are whole numbers on a geometric scale; rounds are split as evenly as
    possible.

    Edge cases: with fewer rounds than steps each round is a step; a shrinking cohort is allowed.
    """
    _validate.count(rounds=rounds, steps=steps)
    _validate.positive(first_cohort=first_cohort, last_cohort=last_cohort)
    levels = min(rounds, steps)
    cohorts = np.round(np.geomspace(first_cohort, last_cohort, levels)).clip(min=1)
    lengths = [len(part) for part in np.array_split(np.arange(rounds), levels)]
    return Schedule(
        tuple(
            Step(rounds=length, cohort=float(cohort), noise_multiplier=math.sqrt(cohort / cohorts[-1]))
            for length, cohort in zip(lengths, cohorts, strict=True)
        )
    )


def preceded(schedule: Schedule, *, share: float) -> Schedule:
    """The schedule after one more round, with the first cohort, that gets a share of the total precision: of the sum of
    1 / z_t^2 over all rounds.
    """
    _validate.fraction(share=share)
    said = sum(step.rounds / step.noise_multiplier**2 for step in schedule.steps)
    noise = math.sqrt((1 - share) / (share * said))
    return Schedule((Step(rounds=1, cohort=schedule.at(0).cohort, noise_multiplier=noise), *schedule.steps))


def listed(*, cohorts: Sequence[float], noise: Iterable[float] | None = None) -> Schedule:
    """One cohort and one (relative) noise multiplier a round; the noise is constant when it is not given."""
    levels = [1.0] * len(cohorts) if noise is None else list(noise)
    if len(levels) != len(cohorts):
        raise ConfigError(field="noise", value=levels, remedy=f"give one noise multiplier a round: {len(cohorts)}")
    return Schedule(tuple(Step(rounds=1, cohort=m, noise_multiplier=z) for m, z in zip(cohorts, levels, strict=True)))
