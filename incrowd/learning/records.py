"""Record-level training in one silo: its records, and what an engine for DP-SGD has to do.

The unit of privacy is one record of the silo. An engine takes noisy steps (Abadi et al. 2016): each record is in a
step's batch with the same probability, independently; the gradients of the batch's records are clipped one by one and
summed; the sum is handed to the owner of the noise, and only what comes back moves the weights. So an engine can
neither spend budget nor draw noise, and the sum has one way out.

Two engines follow the interface: `incrowd.learning.record_engine.BatchedRecords`, and
`incrowd.learning.opacus_engine.OpacusRecords` for a torch module, optimizer and loader of your own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from incrowd._random import Integers, Stream
from incrowd.data.inputs import Inputs, each, named, single
from incrowd.errors import ConfigError, DataError
from incrowd.learning.inputs import are_numbers, check_inputs, chosen, meant, zeros
from incrowd.learning.store import ClientTensors
from incrowd.privacy.mechanism.steps import RecordTraining

_AHEAD = 16  # batches that are drawn at a time

StepNoise = Callable[[Tensor], Tensor]
"""Hides one step: takes the clipped sum (a vector, private) and gives it back with noise on it.

Whoever owns it has put the step on a ledger before; an engine calls it exactly once a step, with empty batches too. The
ready-made ones are in `incrowd.learning.step_noise`.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """The records of one silo: features [n, ...] as they are stored, and labels [n, ...]. Private, their number
    included.

    Features keep their type; what they mean is ``features * scale + offset``, as `incrowd.data.Examples` has it: one
    tensor, or several inputs.
    """

    features: Inputs = field(repr=False)
    labels: Tensor = field(repr=False)
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_inputs(self.features)
        if self.labels.ndim == 0 or any(len(self.labels) != len(one) for one in named(self.features).values()):
            raise DataError("there must be one label for each record")

    def made_up(self, count: int) -> "Records":
        """So many records of zeros, of the same types and shape: nothing of these is in them."""
        return replace(
            self,
            features=zeros(self.features, count),
            labels=self.labels.new_zeros(count, *self.labels.shape[1:]),
        )

    @classmethod
    def of(cls, data: ClientTensors, client: int) -> "Records":
        """The examples of one client as a silo's records, a copy."""
        rows = torch.as_tensor(data.examples(client).astype(np.int64))
        return cls(
            features=chosen(data.features, rows),
            labels=data.labels.index_select(0, rows),
            scale=data.scale,
            offset=data.offset,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's features. Edge cases: several inputs are a `DataError`."""
        return tuple(single(self.features).shape[1:])

    @property
    def plain(self) -> bool:
        """Whether features are one tensor of numbers."""
        return are_numbers(self.features)

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.labels.device

    def to(self, device: torch.device) -> "Records":
        """The same on a device."""
        return replace(self, features=each(lambda one: one.to(device), self.features), labels=self.labels.to(device))


class Reader:
    """Takes records, up to so many at once, into the same memory again and again: fresh memory costs more."""

    def __init__(self, records: Records, rows: int) -> None:
        self.records = records
        if records.plain:
            self._stored = records.features.new_empty(rows, *records.shape)
            self._meant = torch.empty_like(self._stored, dtype=torch.float32)

    def take(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Features as they are meant, numbers in float32, and labels of some records.

        Edge cases: the next call overwrites the features.
        """
        if not self.records.plain:
            stored = chosen(self.records.features, rows)
            inputs = meant(stored, scale=self.records.scale, offset=self.records.offset)
            return inputs, self.records.labels.index_select(0, rows)
        stored, floats = self._stored[: len(rows)], self._meant[: len(rows)]
        torch.index_select(self.records.features, 0, rows, out=stored)
        floats.copy_(stored)
        if self.records.scale != 1:
            floats.mul_(self.records.scale)
        if self.records.offset != 0:
            floats.add_(self.records.offset)
        return floats, self.records.labels.index_select(0, rows)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a round came to: the weights, which are as private as the noise of the steps makes them.

    `dropped` counts the gradients that were not finite, over all steps. It is private: it never leaves the silo.
    """

    weights: Tensor
    dropped: int


class RecordEngine(Protocol):
    """Takes the noisy steps of a round.

    Guarantee: the weights depend on the records through what `noise` returned alone; `noise` is called once a step, in
    order, with the sum of gradients that are each clipped to `clip_norm`; a gradient that is not finite is a zero
    contribution and counted.

    Edge cases: an empty batch is a step, with noise alone; more than `most_records` records are refused.
    """

    @property
    def size(self) -> int:
        """How many weights are trained."""
        ...

    @property
    def held(self) -> int:
        """How many records there are. Private."""
        ...

    def rehearsal(self, records: int) -> "RecordEngine":
        """The same engine on so many records that are made up: nothing of the real ones is read, and what becomes of
        the copy does not touch this one.
        """
        ...

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """Take all steps of a round from these weights; `batches` is where the batches are drawn from."""
        ...


def poisson_batches(records: int, training: RecordTraining, *, batches: Stream) -> Iterator[Integers]:
    """The batch of each step: the numbers of its records, in rising order. Private.

    Guarantee: each record is in each batch independently with `sampling_prob`, rounded down to a multiple of 2^-80.

    Edge cases: batches may be empty; more records than `most_records` are refused before anything is drawn.
    """
    if records > training.most_records:
        raise ConfigError(
            field="most_records", value=training.most_records, remedy="the silo holds more records: give a larger bound"
        )
    left = training.steps
    while left:
        # A few at a time: what sampling works with stays in the cache, and does not drive out what training works with.
        some = [_poisson(records, training.sampling_prob, batches) for _ in range(min(left, _AHEAD))]
        yield from some
        left -= len(some)


def _poisson(records: int, sampling_prob: float, stream: Stream) -> Integers:
    """A number of 80 bits each, below sampling_prob * 2^80; the low 64 bits are drawn only where the high 16 tie."""
    if sampling_prob == 1:
        return np.arange(records)
    high, low = divmod(int(sampling_prob * 2**80), 2**64)
    coarse = stream.bits(-(-records // 4)).view(np.uint16)[:records]
    near = np.flatnonzero(coarse <= high)
    tied = coarse[near] == high
    below = stream.bits(int(tied.sum())) < np.uint64(low)
    taken = ~tied
    taken[tied] = below
    rows: Integers = near[taken]
    return rows
