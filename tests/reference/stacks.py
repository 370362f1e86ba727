"""Contributions as an engine would hold them, in the plainest way."""

from collections.abc import Callable

import numpy as np

from incrowd._random import Floats


class Stack:
    """Rows in memory, seen through the interface of an engine's chunk."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        pieces = np.split(self._rows, np.cumsum(parts or (self._rows.shape[1],))[:-1], axis=1)
        return np.stack([np.linalg.norm(piece, axis=1) for piece in pieces], axis=1)

    def add_to(self, total: Floats, factors: Floats) -> None:
        width = self._rows.shape[1] // factors.shape[1]
        for row, factor in zip(self._rows, np.repeat(factors, width, axis=1), strict=True):
            if factor.any():
                total += row * factor

    def total(
        self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]
    ) -> "StackTotal":
        return StackTotal(self._rows.shape[1], parts, factors)

    def rows(self) -> Floats:
        return self._rows


class StackTotal:
    """A sum of stacks."""

    def __init__(self, size: int, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]) -> None:
        self._total, self._parts, self._factors = np.zeros(size), parts, factors

    def add(self, chunk: Stack) -> Floats:
        norms = chunk.norms(self._parts)
        chunk.add_to(self._total, self._factors(norms))
        return norms

    def flat(self) -> Floats:
        return self._total
