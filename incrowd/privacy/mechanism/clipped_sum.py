"""A sum of clipped contributions, filling up in whole steps of a public grid. Private: only a release may take it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Integers
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, ScalingClip, clip_rows, factors_of, part_norms
from incrowd.privacy.mechanism.grid import Whole, check_sum, coarse_step, contribution_step, whole_steps

ClientNumbers = Sequence[int] | Integers


class ContributionRows(Protocol):
    """Some contributions of a cohort, computed."""

    @property
    def clients(self) -> ClientNumbers:
        """Their clients, in order."""

    def rows(self) -> NDArray[np.floating[Any]]:
        """The contributions themselves, one a row."""


class CohortSum(Protocol):
    """The reply of a batched engine that adds up the contributions where its arrays live."""

    @property
    def norms(self) -> Floats:
        """The norm of each part of each contribution, a row a contribution, before any scaling."""

    @property
    def total(self) -> Floats:
        """The sum, whole steps of `grid.coarse_step` of the bound."""


class CohortContributions(Protocol):
    """The contributions of numbered clients; they may be computed on request."""

    @property
    def clients(self) -> ClientNumbers:
        """The clients."""

    def chunks(self) -> Iterator[ContributionRows]:
        """All of them, some at a time."""

    def summed(self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]) -> CohortSum:
        """The sum of the contributions, each times the factors of its norms.

        Guarantee: each contribution enters in whole steps of `grid.coarse_step(bound)` and, part by part, with at most
        the factor times the norm, which is at most `bound`; a factor of 0 adds nothing, not even of NaN.
        """


@runtime_checkable
class Elsewhere(Protocol):
    """A cohort whose contributions are clipped and added up elsewhere: a network returns their sum."""

    @property
    def clients(self) -> ClientNumbers:
        """The clients that the server asked."""

    def collected(self, clip: Clip) -> "Part":
        """The sum of the replies, clipped by this clip, or by a bound of each client that adds its own noise; a client
        without a proper answer counts as zero.
        """


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Counts for simulations, on which no promise depends. Not private."""

    contributions: int
    dropped: int
    unclipped: int

    @property
    def fraction_clipped(self) -> float:
        """The share of contributions that were longer than the bound, or had no finite norm."""
        return 1 - self.unclipped / self.contributions if self.contributions else 0.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a round's sum in whole steps, and its counts. Private."""

    total: Whole = field(repr=False)
    observed: Observed = field(repr=False)


class ClippedSum:
    """The running sum of one round, of at most `contributions_bound` contributions.

    Guarantee: only clipped contributions enter, once for each call, in whole steps of a public grid and never longer
    for the rounding; so the sum is exact, and the same in any order. One that is not finite counts as zero.
    """

    def __init__(self, size: int, clip: Clip | MedianClip, *, contributions_bound: int) -> None:
        self.size = size
        self.clip = clip
        self._most = contributions_bound
        self._waiting: list[NDArray[Any]] = []
        self._settled: Clip | None = None
        self._closed = False
        self._by_step: dict[float, Floats] = {}  # sums of whole numbers, exact in float64
        self._noised: Whole | None = None
        self._contributions = self._dropped = self._unclipped = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Add contributions, one a row."""
        self.check_fits(rows)
        if isinstance(self.clip, MedianClip):
            self._waiting.append(rows.copy())
            return
        for row in rows:
            steps, step = self._clipped(self.clip, row)
            self._add(steps, step=step)

    def add_noised(self, clip: Clip, row: NDArray[Any], noise: Callable[[Whole], Whole]) -> None:
        """Add one contribution as its client sends it: clipped, in whole steps, and with the client's noise on it."""
        steps, step = self._clipped(clip, row)
        self._add_whole(noise(Whole(steps=steps.astype(np.int64), step=step)))

    def add_summed(self, clip: ScalingClip, cohort: CohortContributions) -> None:
        """Add a cohort whose factors follow from the norms: only norms and the sum arrive here."""
        self._check_filling()
        summed = cohort.summed(bound=clip.clip_norm, parts=clip.parts, factors=partial(_factors, clip))
        if len(summed.norms) != len(cohort.clients):
            raise DataError(f"{len(cohort.clients)} clients were asked, and {len(summed.norms)} contributions came")
        check_sum(summed.total, bound=clip.clip_norm, contributions_bound=max(1, len(cohort.clients)))
        step = coarse_step(clip.clip_norm)
        self._add(whole_steps(summed.total, step=step), step=step)
        lengths: Floats = np.hypot.reduce(summed.norms, axis=1)
        self._count(len(lengths), int((~np.isfinite(lengths)).sum()), int((lengths <= clip.clip_norm).sum()))

    def add_part(self, clip: Clip, cohort: Elsewhere, *, noised: bool) -> None:
        """Add a sum that was clipped, and perhaps noised, elsewhere, if as many contributions can have it."""
        self._check_filling()
        part, asked = cohort.collected(clip), len(cohort.clients)
        seen = part.observed
        if (
            part.total.steps.shape != (self.size,)
            or not 0 <= seen.dropped + seen.unclipped <= seen.contributions <= asked
        ):
            raise DataError(f"what came of {asked} clients is no sum of theirs over {self.size} numbers")
        if noised:
            self._add_whole(part.total)
        else:
            check_sum(part.total, bound=clip.clip_norm, contributions_bound=max(1, asked))
            self._add(part.total.steps.astype(np.float64), step=part.total.step)
        self._count(seen.contributions, seen.dropped, seen.unclipped)

    def add_whole(self, part: Whole) -> None:
        """Add a sum of contributions that were clipped elsewhere, in whole steps; sums add up exactly."""
        self._check_filling()
        self._add_whole(part)

    def settle(self) -> Clip:
        """The clip of the round, the same at every call; a median is known only now, when all norms are."""
        if self._settled is None:
            self._settled = self._fitted(self.clip) if isinstance(self.clip, MedianClip) else self.clip
        return self._settled

    def close(self) -> Whole:
        """Take the sum out: it is not kept, and nothing more may be added."""
        self.check_open()
        clip, self._closed = self.settle(), True
        if self._noised is not None:
            return self._noised
        step = contribution_step(clip.clip_norm, contributions_bound=self._most)
        total = Whole(steps=np.zeros(self.size, np.int64), step=min([step, *self._by_step]))
        for its, steps in self._by_step.items():
            np.add(total.steps, Whole(steps=steps.astype(np.int64), step=its).on(total.step), out=total.steps)
        self._by_step.clear()
        return total

    @property
    def observed(self) -> Observed:
        """The counts so far. Not private."""
        return Observed(contributions=self._contributions, dropped=self._dropped, unclipped=self._unclipped)

    def check_open(self) -> None:
        """Refuse if the sum has been taken out."""
        if self._closed:
            raise ConfigError(field="round", value="closed", remedy="it has been released; open the next round")

    def _check_filling(self) -> None:
        self.check_open()
        if self._settled is not None:
            raise ConfigError(field="round", value="settled", remedy="its release has begun: release it again")

    def check_fits(self, rows: NDArray[Any]) -> None:
        """Refuse contributions of another size, or after the end."""
        if rows.shape[1:] != (self.size,):
            raise DataError(f"a contribution of {rows.shape[1:]} numbers does not fit a run over {self.size}")
        self._check_filling()

    def _fitted(self, clip: MedianClip) -> Clip:
        # One at a time, in and out of the cache: all of them in float64 would be half the time of a round.
        rows, self._waiting = [row for several in self._waiting for row in several], []
        norms = np.concatenate([np.empty((0, 1)), *(part_norms(row[None].astype(np.float64), None) for row in rows)])
        fitted, finite = clip.fit(norms[:, 0]), np.isfinite(norms)
        step = contribution_step(fitted.clip_norm, contributions_bound=self._most)
        for row, factor in zip(rows, _factors(fitted, norms)[:, 0], strict=True):
            if factor > 0:
                steps = np.multiply(row, factor / step, dtype=np.float64)  # exact: a step is a power of two
                self._add(np.trunc(steps, out=steps), step=step)
        self._count(len(rows), int((~finite).sum()), int((norms <= fitted.clip_norm).sum()))
        return fitted

    def _clipped(self, clip: Clip, row: NDArray[Any]) -> tuple[Floats, float]:
        """A contribution as it enters: clipped, and rounded towards zero to whole steps."""
        clipped = clip_rows(clip, row)
        self._count(1, int(clipped.dropped.sum()), int(clipped.unclipped.sum()))
        step = contribution_step(clip.clip_norm, contributions_bound=self._most)
        return np.trunc(clipped.rows[0] / step), step

    def _add_whole(self, noised: Whole) -> None:
        if self._noised is None:
            self._noised = Whole(steps=noised.steps.copy(), step=noised.step)
        else:
            np.add(self._noised.steps, noised.on(self._noised.step), out=self._noised.steps)

    def _add(self, steps: Floats, *, step: float) -> None:
        total = self._by_step.setdefault(step, np.zeros(self.size))
        total += steps

    def _count(self, contributions: int, dropped: int, unclipped: int) -> None:
        self._contributions += contributions
        self._dropped += dropped
        self._unclipped += unclipped


def _factors(clip: ScalingClip, norms: Floats) -> Floats:
    """The clip's factors; 0 for the parts of a contribution that is not finite."""
    finite = np.isfinite(norms).all(axis=1, keepdims=True)
    return np.where(finite, factors_of(clip, np.where(finite, norms, 0.0)), 0.0)
