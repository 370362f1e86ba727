"""A pool as plain numbers: what a server that restarts goes on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Integers
from incrowd.errors import DataError

DIGEST = 16
"""Bytes of the digest of an answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Everything that a pool is, but for where its randomness comes from.

    `versions` are the numbers of the instances, `last` is the last that may have been given to any, after a crash more
    than they show; `replaced` are the versions that were replaced lately, oldest first; `average` is the average over
    time after so many `looks`. `test` is what a residual test has learnt, `taken` digests of answers, if a server adds
    them.

    Edge cases: `check` refuses arrays that do not fit each other, and numbers that are not finite (`DataError`).
    """

    instances: NDArray[np.float32]
    versions: Integers
    replaced: NDArray[np.float32]
    replaced_versions: Integers
    draws: int
    discards: int
    average: Floats | None = None
    looks: int = 0
    last: int = 0
    test: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    taken: Sequence[bytes] = ()

    def check(self) -> None:
        """Refuse arrays that do not fit each other (`DataError`)."""
        rows, replaced = self.instances, self.replaced
        average = np.zeros(rows.shape[1:]) if self.average is None else self.average
        fits = (
            (rows.ndim, replaced.ndim) == (2, 2)
            and rows.shape[1] == replaced.shape[1]
            and average.shape == rows.shape[1:]
            and self.versions.shape == rows.shape[:1]
            and self.replaced_versions.shape == replaced.shape[:1]
            and min(self.draws, self.discards, self.looks) >= 0
        )
        if not fits or 0 in rows.shape:
            raise DataError(f"this is no snapshot of a pool: instances {rows.shape}, replaced {replaced.shape}")
        for array, kind in ((rows, np.float32), (replaced, np.float32), (average, np.float64)):
            if array.dtype != kind or not np.isfinite(array).all():
                raise DataError(f"this is no snapshot of a pool: its numbers are {array.dtype}, or not finite")
        numbers = np.concatenate([self.versions, self.replaced_versions])
        if numbers.dtype != np.int64 or (numbers < 0).any() or len(set(numbers.tolist())) != len(numbers):
            raise DataError("this is no snapshot of a pool: its versions are no different whole numbers")
