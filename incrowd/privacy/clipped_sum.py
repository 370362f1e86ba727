"""A sum of clipped contributions, filling up. It is private: only a release may take it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.clipping import Clip, MedianClip, ScalingClip, clip_rows, part_norms


class Total(Protocol):
    """A sum that a batched engine keeps where its arrays live, of contributions scaled by factors of their norms.

    Guarantee: what enters of a contribution is no longer, part by part, than the factor times the norm; a factor of 0
    adds nothing, not even of NaN.
    """

    def add(self, chunk: Any) -> Floats:
        """Add a chunk of the same engine, which uses it up; its norms, a row a contribution, a column a part."""
        ...

    def flat(self) -> Floats:
        """The sum as one vector."""
        ...


class Chunk(Protocol):
    """Contributions that a batched engine keeps where its arrays live; only norms and sums cross over."""

    def total(self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]) -> Total:
        """An empty sum for chunks of this engine, whose scaled contributions have norms of at most `bound`."""
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
        self._engines: Total | None = None
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
        self._still_open()
        if self._engines is None:
            self._engines = chunk.total(bound=clip.clip_norm, parts=clip.parts, factors=partial(_factors, clip))
        lengths: Floats = np.hypot.reduce(self._engines.add(chunk), axis=1)
        self._count(len(lengths), int((~np.isfinite(lengths)).sum()), int((lengths <= clip.clip_norm).sum()))

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
        if self._engines is not None:
            total += self._engines.flat()
            self._engines = None
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
