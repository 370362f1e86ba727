"""A sum of clipped contributions, filling up. It is private: only a release may take it."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.clipping import Clip, MedianClip, ScalingClip, clip_rows, part_norms


class Chunk(Protocol):
    """Contributions that a batched engine keeps where its arrays live; only norms and sums cross over."""

    def norms(self, parts: tuple[int, ...] | None) -> Floats:
        """The L2 norm of each part of each contribution: a row a contribution, a column a part."""
        ...

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution, its parts times their factors; a factor of 0 adds nothing, not even of NaN."""
        ...

    def rows(self) -> NDArray[np.floating[Any]]:
        """The contributions themselves, one a row."""
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

    def add_chunk(self, chunk: Chunk) -> None:
        """Take contributions in from a batched engine: only their norms and their scaled sum are computed."""
        clip = self.clip
        if not isinstance(clip, ScalingClip):
            self.add(chunk.rows())
            return
        norms = chunk.norms(clip.parts)
        lengths: Floats = np.hypot.reduce(norms, axis=1)
        finite = np.isfinite(lengths)
        factors = np.where(finite[:, None], clip.factors(np.where(finite[:, None], norms, 0.0)), 0.0)
        self._count(len(norms), int((~finite).sum()), int((finite & (lengths <= clip.clip_norm)).sum()))
        chunk.add_to(self._still_open(), factors)

    def settle(self) -> Clip:
        """The clip of the round; a median is known only now, when all norms are."""
        if not isinstance(self.clip, MedianClip):
            return self.clip
        norms = [part_norms(rows.astype(np.float64), None)[:, 0] for rows in self._waiting]
        clip = self.clip.fit(np.concatenate([np.empty(0), *norms]))
        for rows in self._waiting:
            self._take(clip, rows)
        self._waiting = []
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
