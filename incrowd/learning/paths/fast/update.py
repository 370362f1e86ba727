"""One client's update, still in the memory where it was trained."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.paths.fast import kernel
from incrowd.learning.paths.fast.memory import Memory, Numbers, Space


@dataclass(frozen=True, eq=False)
class StackDelta:
    """See `incrowd.learning.deltas.Delta`. Edge cases: it holds until the next client is trained."""

    layout: Memory
    space: Space
    start: Numbers
    used: int
    whole: bool  # whether all lies where it does in the start

    def __len__(self) -> int:
        return 1

    @property
    def size(self) -> int:
        """See `Delta.size`."""
        return self.layout.numbers

    @property
    def changes(self) -> Tensor:
        """See `Delta.changes`: a copy."""
        found = np.zeros(self.layout.size, np.float32)
        kernel.subtract(self.space, self.start, self.used, self.whole, found)
        return torch.from_numpy(self.layout.flat(found)[None])

    def squares(self) -> Floats:
        """See `Delta.squares`."""
        return np.array([kernel.squares(self.space, self.start, self.used, self.whole)])

    def moved(self) -> FlatDelta:
        """See `Delta.moved`."""
        return FlatDelta(self.changes, self.squares())

    def empty_total(self) -> Tensor:
        """See `Delta.empty_total`."""
        return torch.zeros(self.layout.size)

    def add_steps(self, total: Tensor, some: slice, divisors: Tensor) -> None:
        """See `Delta.add_steps`."""
        divisor = np.float32(float(divisors[0, 0]))
        if divisor < np.inf:
            kernel.add_steps(self.space, self.start, self.used, self.whole, divisor, total.numpy())

    def flat(self, total: Tensor) -> Numbers:
        """See `Delta.flat`."""
        return self.layout.flat(total.numpy())
