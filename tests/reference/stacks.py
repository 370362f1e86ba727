"""Contributions as an engine would hold them, in the plainest way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from incrowd._random import Floats
from incrowd.privacy.mechanism import grid


class Stack:
    """Rows in memory, seen through the interface of an engine's chunk."""

    def __init__(self, rows: Floats, *, first: int = 0) -> None:
        self._rows = rows
        self.clients: Sequence[int] = range(first, first + len(rows))

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        pieces = np.split(self._rows, np.cumsum(parts or (self._rows.shape[1],))[:-1], axis=1)
        return np.stack([np.linalg.norm(piece, axis=1) for piece in pieces], axis=1)

    def add_to(self, total: Floats, factors: Floats) -> None:
        width = self._rows.shape[1] // factors.shape[1]
        for row, factor in zip(self._rows, np.repeat(factors, width, axis=1), strict=True):
            if factor.any():
                total += row * factor

    def rows(self) -> Floats:
        return self._rows


@dataclass(frozen=True)
class StackCohort:
    """Stacks, seen through the interface of an engine's cohort."""

    stacks: Sequence[Stack]

    @property
    def clients(self) -> Sequence[int]:
        return [client for stack in self.stacks for client in stack.clients]

    def chunks(self) -> Iterator[Stack]:
        yield from self.stacks

    def summed(self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]) -> "StackSum":
        norms, total = [], np.zeros(self.stacks[0].rows().shape[1])
        step = grid.coarse_step(bound)
        for stack in self.stacks:
            norms.append(stack.norms(parts))
            for row, its in zip(stack.rows(), factors(norms[-1]), strict=True):
                one = np.zeros_like(total)
                Stack(row[None]).add_to(one, its[None])
                total += np.trunc(one / step) * step
        return StackSum(np.concatenate(norms), total)


@dataclass(frozen=True)
class StackSum:
    """What is told of them."""

    norms: Floats
    total: Floats
