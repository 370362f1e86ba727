"""Contributions as an engine would hold them, in the plainest way."""

import numpy as np

from incrowd._random import Floats


class Stack:
    """Rows in memory, seen through the interface of an engine's chunk."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows

    def norms(self, parts: tuple[int, ...] | None) -> Floats:
        pieces = np.split(self._rows, np.cumsum(parts or (self._rows.shape[1],))[:-1], axis=1)
        return np.stack([np.linalg.norm(piece, axis=1) for piece in pieces], axis=1)

    def add_to(self, total: Floats, factors: Floats) -> None:
        width = self._rows.shape[1] // factors.shape[1]
        for row, factor in zip(self._rows, np.repeat(factors, width, axis=1), strict=True):
            if factor.any():
                total += row * factor

    def rows(self) -> Floats:
        return self._rows
