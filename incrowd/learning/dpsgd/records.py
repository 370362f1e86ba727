"""The records of one silo, the Poisson batches of DP-SGD, and the interface of an engine that takes its steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd._random import Floats, Integers, Stream
from incrowd.data.examples import Inputs, each, named
from incrowd.errors import ConfigError, DataError
from incrowd.learning.inputs import ClientTensors, check_inputs, chosen, meant, zeros
from incrowd.privacy.mechanism.grid import RecordTraining

StepNoise = Callable[[Tensor], Tensor]
"""Hides one step: takes the clipped sum, a private vector, and gives it back with noise on it.

Its owner has charged the step to a ledger before. The ready-made ones are in `incrowd.learning.dpsgd.records`.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """The records of one silo: features [n, ...] stored as `incrowd.data.Examples` has them, and labels [n, ...].
    Private, their number included.
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
        labels = self.labels.new_zeros(count, *self.labels.shape[1:])
        return replace(self, features=zeros(self.features, count), labels=labels)

    @classmethod
    def of(cls, data: ClientTensors, client: int) -> "Records":
        """The examples of one client as a silo's records, a copy."""
        rows = torch.as_tensor(data.examples(client).astype(np.int64))
        features, labels = chosen(data.features, rows), data.labels.index_select(0, rows)
        return cls(features=features, labels=labels, scale=data.scale, offset=data.offset)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """The meaning of some records' features, numbers in float32, and their labels."""
        rows = rows.to(self.device)
        features = meant(chosen(self.features, rows), scale=self.scale, offset=self.offset)
        return features, self.labels.index_select(0, rows)

    @property
    def device(self) -> torch.device:
        """The device that holds them."""
        return self.labels.device

    def to(self, device: torch.device) -> "Records":
        """The same on a device."""
        return replace(self, features=each(lambda one: one.to(device), self.features), labels=self.labels.to(device))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a round: weights, as private as the noise of the steps makes them. `dropped` counts the gradients
    that were not finite; it never leaves the silo.
    """

    weights: Tensor
    dropped: int

    def update(self, start: NDArray[np.float32]) -> Floats:
        """The trained weights minus the weights at the start."""
        moved: Floats = self.weights.numpy().astype(np.float64) - start
        return moved


class RecordEngine(Protocol):
    """Takes the noisy steps of a round, as `incrowd.learning.dpsgd` promises.

    Edge cases: an empty batch is a step of noise alone; more than `most_records` records are refused.
    """

    @property
    def size(self) -> int:
        """How many weights are trained."""
        ...

    @property
    def third_party(self) -> str:
        """The loss that is not incrowd's, in words; empty without one."""
        ...

    @property
    def held(self) -> int:
        """How many records there are. Private."""
        ...

    def rehearsal(self, records: int) -> "RecordEngine":
        """A copy of the engine on so many made-up records, which reads no real one and does not touch this engine."""
        ...

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """Take all steps of a round from these weights, with batches drawn from this stream."""
        ...


def poisson_batches(records: int, training: RecordTraining, *, batches: Stream) -> Iterator[Integers]:
    """The numbers of the records in each step's batch, in rising order. Private. More than `most_records` are refused.

    Guarantee: each record is in each batch independently with `sampling_prob`, rounded down to a multiple of 2^-80.
    """
    if records > training.most_records:
        remedy = "the silo holds more records: give a larger bound"
        raise ConfigError(field="most_records", value=training.most_records, remedy=remedy)
    for _ in range(training.steps):
        yield _poisson(records, training.sampling_prob, batches)


def _poisson(records: int, sampling_prob: float, stream: Stream) -> Integers:
    """The records whose 80 random bits are below sampling_prob * 2^80. The low 64 are drawn where the high 16 tie."""
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


def on_tensors(noised: Callable[[Floats], Floats]) -> StepNoise:
    """A function that adds noise to a flat float64 array, for an engine's tensors."""

    def hide(total: Tensor) -> Tensor:
        return torch.from_numpy(noised(total.double().cpu().numpy())).to(total.device)

    return hide
