"""Gaussian noise in shares: each party adds its own before it rounds to a coarse public grid.

A party knows its own share, so the shares of any parties but `colluders` come to the planned noise. A sum has few bits,
and masks hide it without a remainder (`incrowd.parties.secure_sum`).

Rounding costs no privacy. Write S for the sum of floor(x_i + Y_i) over h honest parties, with any real x_i and with
Y_i ~ N(0, s^2) in steps of the grid. Up to a factor 1 +- eta, S is a random rounding of the central Gaussian release
N(sum of x_i, h s^2), and the rounding knows no x_i. `largest_error` bounds eta: below 1e-66 at 4 steps a share.
docs/secure-sum.md has the proof.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import GaussianDpEvent

from incrowd import _validate
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.grid import REACH, GaussianNoise, Purpose, Whole, check_sum, sample_noise

if TYPE_CHECKING:
    from incrowd.privacy.ledger.tally import Receipt

LEAST_STEPS = 4.0
"""Every share has a standard deviation of at least so many steps of the grid."""

_FINE = 28  # a share is drawn on a grid that is 2 to this many times finer
_LARGEST_SCALE, _LARGEST_SUM, _LARGEST_WORD = 2.0**50, 2.0**62, 2**30
_NEVER = 1.02 * REACH  # no share is drawn beyond so many deviations


@dataclass(frozen=True, kw_only=True)
class SharedNoise:
    """The `noise` of a sum, in shares of so many `parties`, of whom so many may be `colluders`.

    Guarantee: the shares of all listed parties but `colluders` have together at least the variance of `noise`.
    Step, `largest` and word follow from the plan alone, never from who is listed. Sums of listed parties never
    exceed `largest`, with at least one spare bit in a word. With no colluder one share would have to hide all others
    from its own party, so there is at least one; a list that colluders could fill is refused.
    """

    noise: GaussianNoise
    parties: int
    colluders: int
    contributions_bound: int

    def __post_init__(self) -> None:
        _validate.count(parties=self.parties, colluders=self.colluders, contributions_bound=self.contributions_bound)
        if self.colluders >= self.parties:
            remedy = f"somebody has to be honest: give at most {self.parties - 1} of {self.parties} parties"
            raise ConfigError(field="colluders", value=self.colluders, remedy=remedy)
        self.fine(self.step)

    def event(self) -> GaussianDpEvent:
        """The cost of a sum, against a server and at most `colluders` of the parties."""
        return self.noise.event()

    def deviation(self, listed: int) -> float:
        """The standard deviation of one share, where so many parties are listed."""
        if not self.colluders < listed <= self.parties:
            remedy = f"list at least {self.colluders + 1} of the {self.parties} parties: fewer may all collude"
            raise ConfigError(field="listed", value=listed, remedy=remedy)
        return self.noise.scale(self.contributions_bound) / math.sqrt(listed - self.colluders)

    def released_std(self, listed: int) -> float:
        """The standard deviation of a released sum: of all shares that are listed, and their rounding."""
        return math.sqrt(listed * (self.deviation(listed) ** 2 + self.step**2 / 12))

    @property
    def step(self) -> float:
        """The step of the grid: a power of two, at most a fourth of the smallest share."""
        return float(2.0 ** math.floor(math.log2(self.deviation(self.parties) / LEAST_STEPS)))

    def fine(self, step: float) -> float:
        """The step in which a part in steps of such a size and a share are added, exactly, in 64-bit numbers."""
        fine = min(step, self.step * 2.0**-_FINE)
        sums = self.contributions_bound * self.noise.clip_norm + self._most_noise
        if sums >= _LARGEST_SUM * fine or self.deviation(self.colluders + 1) >= _LARGEST_SCALE * fine:
            remedy = "parts and shares fit no grid of 64-bit numbers: give a noise nearer 1, or fewer contributions"
            raise ConfigError(field="noise_multiplier", value=self.noise.noise_multiplier, remedy=remedy)
        if self.largest >= _LARGEST_WORD:
            remedy = "sums do not fit words of 32 bits beside such shares: raise the noise, or have fewer contributions"
            raise ConfigError(field="noise_multiplier", value=self.noise.noise_multiplier, remedy=remedy)
        return fine

    @property
    def largest(self) -> int:
        """The most steps that a number of a sum can have."""
        sums = self.contributions_bound * self.noise.clip_norm * 1.01
        return math.ceil((sums + self._most_noise) / self.step) + self.parties

    @property
    def word(self) -> type[np.uint16] | type[np.uint32]:
        """The numbers modulo which sums are taken: they keep a spare bit, by which garbage is noticed."""
        return np.uint16 if 2 * self.largest < 2**15 else np.uint32

    def share(self, listed: int) -> "NoiseShare":
        """The share of one of so many listed parties."""
        self.deviation(listed)
        return NoiseShare(shared=self, listed=listed)

    def total(self, sums: np.ndarray) -> Whole:
        """The released sum, from the sum of all answers in words.

        Numbers that no sum can have are refused: lists or questions differed, or a party lied.
        """
        whole = sums.view(np.int16 if sums.dtype == np.uint16 else np.int32).astype(np.int64)
        if np.abs(whole).max(initial=0) > self.largest:
            raise DataError("answers that do not add up to a sum: the round is lost, and nothing of it is released")
        return Whole(steps=whole, step=self.step)

    @property
    def _most_noise(self) -> float:
        ends = (self.colluders + 1, self.parties)  # listed * deviation(listed) has its largest values here
        return max(_NEVER * listed * self.deviation(listed) for listed in ends)


@dataclass(frozen=True, kw_only=True)
class NoiseShare:
    """One party's share of the noise in a round with so many listed parties: a receipt pays for it."""

    shared: SharedNoise
    listed: int

    def event(self) -> GaussianDpEvent:
        """The cost of the sum of all shares, which is what one share is charged as."""
        return self.shared.event()

    def check(self, part: Whole, *, contributions_bound: int) -> float:
        """Refuse, unpaid, a part that so many contributions cannot have; the step in which a share is added."""
        shared = self.shared
        _validate.at_most(shared.contributions_bound, "that of the plan", contributions_bound=contributions_bound)
        if type(part) is not Whole:
            raise DataError(f"a part of the type {type(part).__name__}: give a Whole")
        check_sum(part, bound=shared.noise.clip_norm, contributions_bound=contributions_bound)
        return shared.fine(part.step)

    def add(self, part: Whole, *, receipt: "Receipt", at: Purpose, contributions_bound: int) -> Whole:
        """The part of one party with its share, rounded to the nearest step of the coarse grid.

        Guarantee: noise is added first, in whole steps of a fine grid on which the part is exact. One share is drawn.
        """
        shared, fine = self.shared, self.check(part, contributions_bound=contributions_bound)
        stream = receipt.noise_stream(self, *at)
        noise = sample_noise(scale=shared.deviation(self.listed) / fine, size=part.steps.size, stream=stream)
        return Whole(steps=Whole(steps=part.on(fine) + noise, step=fine).on(shared.step), step=shared.step)


def largest_error(steps: float, *, parties: int) -> float:
    """The bound on eta for so many honest shares of a deviation of so many steps; see docs/secure-sum.md."""
    exponents = [-2 * math.pi**2 * steps**2 * r / (r + 1) for r in range(1, parties)]
    merged = [2 * sum(math.exp(each * m * m) for m in (1, 2, 3)) * (1 + 1e-9) for each in exponents]  # the rest is less
    return math.expm1(sum(merged))
