"""A sum of clipped contributions, filling up. It is private: only a release may take it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, ScalingClip, clip_rows, part_norms


class Chunk(Protocol):
    """Some contributions of a cohort."""

    def rows(self) -> NDArray[np.floating[Any]]:
        """The contributions themselves, one a row."""
        ...


class Summed(Protocol):
    """What a batched engine tells of a cohort when it adds up the contributions where its arrays live."""

    @property
    def norms(self) -> Floats:
        """The norm of each part of each contribution, a row a contribution, before anything was done to it."""
        ...

    @property
    def total(self) -> Floats:
        """The sum."""
        ...


class Cohort(Protocol):
    """Contributions that a batched engine still has to compute."""

    def chunks(self) -> Iterator[Chunk]:
        """All of them, some at a time."""
        ...

    def summed(self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]) -> Summed:
        """Their sum, each times the factors that its norms ask for.

        Guarantee: what enters of a contribution is no longer, part by part, than the factor times the norm, which is at
        most `bound`; a factor of 0 adds nothing, not even of NaN.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a simulation may look at, because no promise depends on it. Not private."""

    contributions: int
    dropped: int
    unclipped: int

    @property
    def fraction_clipped(self) -> float:
        """The share of the contributions that were longer than the bound, or could not be measured."""
        return 1 - self.unclipped / self.contributions if self.contributions else 0.0


class ClippedSum:
    """The running sum of one round.

    Guarantee: only clipped contributions enter it, each as often as it is given; one that is not finite counts as zero.

    Edge cases: a contribution of another size is refused, and so is one that comes after `close`.
    """

    def __init__(self, size: int, clip: Clip | MedianClip) -> None:
        self.size = size
        self.clip = clip
        self._waiting: list[NDArray[Any]] = []
        self._total: Floats | None = np.zeros(size)
        self._contributions = self._dropped = self._unclipped = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Take contributions in: one vector, or one a row."""
        rows = np.atleast_2d(rows)
        if rows.shape[1:] != (self.size,):
            raise DataError(f"a contribution of {rows.shape[1:]} numbers does not fit a run over {self.size}")
        if isinstance(self.clip, MedianClip):
            self._still_open()
            self._waiting.append(rows)
        else:
            self._take(self.clip, rows)

    def add_cohort(self, cohort: Cohort) -> None:
        """Take a whole cohort in: where its factors are known from the norms, only these and the sum come here."""
        self._still_open()
        clip = self.clip
        if not isinstance(clip, ScalingClip):
            for chunk in cohort.chunks():
                self.add(chunk.rows())
            return
        found = cohort.summed(bound=clip.clip_norm, parts=clip.parts, factors=partial(_factors, clip))
        total = self._still_open()
        total += found.total
        lengths: Floats = np.hypot.reduce(found.norms, axis=1)
        self._count(len(lengths), int((~np.isfinite(lengths)).sum()), int((lengths <= clip.clip_norm).sum()))

    def settle(self) -> Clip:
        """The clip of the round; a median is known only now, when all norms are."""
        if not isinstance(self.clip, MedianClip):
            return self.clip
        # One at a time, in and out of the cache: all of them in float64 would be half the time of a round.
        rows, self._waiting = [row for several in self._waiting for row in several], []
        norms = np.concatenate([np.empty((0, 1)), *(part_norms(row[None].astype(np.float64), None) for row in rows)])
        clip = self.clip.fit(norms[:, 0])
        total, finite = self._still_open(), np.isfinite(norms)
        for row, factor in zip(rows, _factors(clip, norms)[:, 0], strict=True):
            if factor > 0:
                total += np.multiply(row, factor, dtype=np.float64)
        self._count(len(rows), int((~finite).sum()), int((norms <= clip.clip_norm).sum()))
        return clip

    def close(self) -> Floats:
        """Take the sum out: it is not kept, and nothing more comes in."""
        total, self._total = self._still_open(), None
        return total

    @property
    def observed(self) -> Observed:
        """What has come in so far. Not private."""
        return Observed(contributions=self._contributions, dropped=self._dropped, unclipped=self._unclipped)

    def _take(self, clip: Clip, rows: NDArray[Any]) -> None:
        clipped = clip_rows(clip, rows)
        self._count(len(rows), int(clipped.dropped.sum()), int(clipped.unclipped.sum()))
        self._still_open()[:] += clipped.rows.sum(axis=0)

    def check_open(self) -> None:
        """Refuse when the sum has been taken out."""
        self._still_open()

    def _still_open(self) -> Floats:
        if self._total is None:
            raise ConfigError(field="round", value="closed", remedy="it has been released; open the next round")
        return self._total

    def _count(self, contributions: int, dropped: int, unclipped: int) -> None:
        self._contributions += contributions
        self._dropped += dropped
        self._unclipped += unclipped


def _factors(clip: ScalingClip, norms: Floats) -> Floats:
    """The clip's factors; 0 for the parts of a contribution that is not finite."""
    finite = np.isfinite(norms).all(axis=1, keepdims=True)
    return np.where(finite, clip.factors(np.where(finite, norms, 0.0)), 0.0)
