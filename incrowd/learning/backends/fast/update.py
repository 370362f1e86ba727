"""Updates of clients as the kernel has them: their norms and their sum."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.backends.fast import kernel
from incrowd.learning.backends.fast.memory import Memory, Numbers
from incrowd.learning.contributions import FlatDelta


@dataclass(frozen=True, eq=False)
class StackDelta:
    """See `incrowd.learning.contributions.Delta`. Edge cases: it holds until the next clients are trained."""

    layout: Memory
    rows: Numbers
    """The update of each client, in the layout of its weights."""
    known: Floats
    """The squared length of each row."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """See `Delta.size`."""
        return self.layout.numbers

    @property
    def changes(self) -> Tensor:
        """See `Delta.changes`: a copy."""
        return torch.from_numpy(np.stack([self.layout.flat(row) for row in self.rows]))

    def squares(self) -> Floats:
        """See `Delta.squares`."""
        return self.known

    def moved(self) -> FlatDelta:
        """See `Delta.moved`."""
        return FlatDelta(self.changes, self.known)

    def empty_total(self) -> Tensor:
        """See `Delta.empty_total`."""
        return torch.zeros(self.layout.size)

    def add_steps(self, total: Tensor, some: slice, divisors: Tensor) -> None:
        """See `Delta.add_steps`."""
        kernel.add_steps(self.rows[some], divisors.numpy()[some, 0], total.numpy())

    def flat(self, total: Tensor) -> Numbers:
        """See `Delta.flat`."""
        return self.layout.flat(total.numpy())
