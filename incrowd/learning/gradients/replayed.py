"""Gradients of records on an accelerator: always as many records at a time, in steps that it repeats by itself.

There, telling the machine what to do takes longer than doing it, for a batch of DP-SGD even ten times as long.
"""

from typing import Protocol

import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.data.inputs import Inputs
from incrowd.learning.arithmetic import in_one_order
from incrowd.learning.gradients.room import Room, fill
from incrowd.learning.replay import Notes, Take


class RecordBlock(Protocol):
    """The clipped sum of the gradients of always as many records, told without asking the device for a number."""

    @property
    def rows(self) -> int:
        """How many records."""
        ...

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`."""
        ...

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        ...

    def squares(self, features: Inputs, labels: Tensor) -> Tensor:
        """The squared norms of the gradients of these records."""
        ...

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        ...


class Replayed:
    """A block's work, noted once. Fewer records than it takes are filled up with zeros, which count for nothing.

    Guarantee: as `incrowd.learning.gradients.sums.RecordGradients`.
    """

    def __init__(self, block: RecordBlock, device: torch.device) -> None:
        self.rows = block.rows
        self._block, self._device, self._notes = block, device, Notes(device)
        self._squares, self._factors = (torch.zeros(block.rows, dtype=torch.float64, device=device) for _ in range(2))
        self._room = Room(block.rows)
        self._measure: Take = _nothing
        self._sum: Take = _nothing

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`."""
        return self._block.total

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        self._block.begin(records)

    def norms(self, features: Inputs, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        inputs, targets = self._room.filled(features, labels)
        if self._measure is _nothing:
            self._note(inputs, targets)
        self._measure()
        norms: Floats = self._squares.sqrt().cpu().numpy()[: len(labels)]
        return norms

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        fill(self._factors, factors)
        self._sum()

    def _note(self, inputs: Inputs, targets: Tensor) -> None:
        """Note the two halves of the work; the factors are 0 meanwhile, so that nothing is added."""

        def measure() -> None:
            self._squares.copy_(self._block.squares(inputs, targets))

        with in_one_order(self._device):
            # The second half reads what the first has left: where one is told anew each time, both are.
            halves = self._notes.noted_together(measure, lambda: self._block.add(self._factors))
        self._measure, self._sum = halves


def _nothing() -> None:
    raise AssertionError("nothing is noted before the first records")
