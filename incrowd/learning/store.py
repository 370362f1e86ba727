"""The clients' examples as the engine wants them: shared tensors, and the batches of a few clients together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.errors import DataError
from incrowd.learning.batches import Batches

if TYPE_CHECKING:
    from incrowd.data import FederatedData

_PAYS = 0.9  # features are dropped when at most this share of them is left
MEMORY = 512 * 2**20  # bytes of examples without unused features that are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTensors:
    """All that the engine knows about data: client k holds the examples ``indices[offsets[k]:offsets[k + 1]]``.

    Features keep the type they are stored in; what they mean is ``features * scale + offset``. ``declared`` is the
    public number of clients, where it is another one than those that are there.
    """

    features: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    offsets: NDArray[Any] = field(repr=False)
    indices: NDArray[Any] = field(repr=False)
    scale: float = 1.0
    offset: float = 0.0
    declared: int | None = None

    def __post_init__(self) -> None:
        if self.features.dtype not in (torch.uint8, torch.float32) or not self.features.is_contiguous():
            raise DataError(f"features are {self.features.dtype}: give contiguous uint8 or float32")
        if self.features.ndim < 2 or self.labels.shape != self.features.shape[:1]:
            raise DataError(
                f"features have the shape {tuple(self.features.shape)} and labels {tuple(self.labels.shape)}: "
                "give [examples, ...] and [examples]"
            )

    @classmethod
    def of(cls, data: "FederatedData") -> "ClientTensors":
        """The tensors of a federated data set, without a copy."""
        tensors = data.as_tensors()
        return cls(
            features=tensors.features,
            labels=tensors.labels,
            offsets=data.partition.offsets,
            indices=data.partition.indices,
            scale=data.examples.scale,
            offset=data.examples.offset,
            declared=data.declared,
        )

    @property
    def clients(self) -> int:
        """The public number of clients."""
        return self.present if self.declared is None else self.declared

    @property
    def present(self) -> int:
        """How many clients there are, which is private where a number is declared."""
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.features.shape[1:])

    def examples(self, client: int) -> NDArray[Any]:
        """The indices of one client's examples."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def to(self, device: torch.device) -> "ClientTensors":
        """The same with features and labels on a device."""
        return ClientTensors(
            features=self.features.to(device),
            labels=self.labels.to(device),
            offsets=self.offsets,
            indices=self.indices,
            scale=self.scale,
            offset=self.offset,
            declared=self.declared,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Feed:
    """The examples of c clients, batch after batch.

    Row t * width + i of client j is example i of its step t. ``columns`` says which features the examples consist of;
    None means all of them.
    """

    table: Tensor  # [rows, ...], as stored
    rows: Tensor  # [c, steps * width], which row of the table
    labels: Tensor  # [c, steps * width]
    batches: Batches
    columns: Tensor | None  # [c, D]
    scale: float
    offset: float

    _buffers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def stored(self, client: int | slice, rows: slice) -> Tensor:
        """The examples of one client [rows, ...], or of several [c, rows, ...]: times `scale` they are as meant.

        Edge cases: the next call overwrites them, because fresh memory would cost more than the work on it.
        """
        chosen = self.rows[client, rows]
        stored, floats = self._buffer(chosen.numel())
        torch.index_select(self.table, 0, chosen.reshape(-1), out=stored)
        if floats is not stored:
            floats.copy_(stored)
        if self.offset != 0:
            floats.add_(self.offset / self.scale)
        return floats.view(*chosen.shape, *self.table.shape[1:])

    def examples(self, client: int | slice, rows: slice) -> Tensor:
        """The examples as they are meant. Edge cases: as `stored`."""
        stored = self.stored(client, rows)
        return stored if self.scale == 1 else stored.mul_(self.scale)

    def _buffer(self, rows: int) -> tuple[Tensor, Tensor]:
        if rows not in self._buffers:
            shape = (rows, *self.table.shape[1:])
            stored = torch.empty(shape, dtype=self.table.dtype, device=self.table.device)
            floats = stored if stored.dtype == torch.float32 else torch.empty(shape, device=self.table.device)
            self._buffers[rows] = stored, floats
        return self._buffers[rows]

    @cached_property
    def weights(self) -> Tensor | None:
        """The weight [c, steps * width, 1] of each example, so that its batch is divided by ``width`` in any case.

        It is width / size for those that count and 0 for the others; None when every batch is full.
        """
        sizes, width = self.batches.sizes, self.batches.width
        if (sizes == width).all():
            return None
        weights = np.where(np.arange(width) < sizes[..., None], width / np.maximum(sizes, 1)[..., None], 0.0)
        flat = torch.from_numpy(weights.astype(np.float32).reshape(len(sizes), -1, 1))
        return flat.to(self.table.device)


@dataclass(eq=False)
class Store:
    """Brings clients' examples together, and knows which features a client never uses.

    ``narrow`` asks for feeds without the features that are zero in all examples of a client, where that saves enough.
    Examples without such features are kept, up to ``memory`` bytes; those of other clients are made anew each time.
    """

    data: ClientTensors
    narrow: bool
    memory: int = MEMORY
    _used: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[int, NDArray[Any]] = field(default_factory=dict, init=False, repr=False)
    _scratch: NDArray[Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        # Zero in storage is zero in meaning only without an offset.
        self.narrow = self.narrow and self.data.offset == 0 and self.data.features.device.type == "cpu"
        # Among numbers of which few are zero no client leaves many features out, and looking takes long.
        self.narrow = self.narrow and self.share_of_zeros > 1 - _PAYS

    @cached_property
    def share_of_zeros(self) -> float:
        """Of all features, by a thousand examples."""
        some = self._features[:: max(1, len(self._features) // 1000)]
        return float(np.mean(some == 0)) if some.size else 0.0

    def extent(self, client: int) -> int:
        """How many features this client uses, for sorting clients of one kind together."""
        return len(self.used_by(client)) if self.narrow else 0

    def feed(self, clients: Sequence[int], batches: Batches) -> Feed:
        """The examples of these clients in these batches.

        Edge cases: without unused features they are in memory that the next feed overwrites.
        """
        own = [self.data.examples(client) for client in clients]
        places = batches.positions.reshape(len(clients), -1)
        rows = np.stack([indices[place] for indices, place in zip(own, places, strict=True)]).astype(np.int64)
        chosen = torch.from_numpy(rows).to(self.data.features.device)
        labels = self.data.labels.index_select(0, chosen.view(-1)).view(chosen.shape)
        table, columns = self.data.features, None
        width = max(map(self.extent, clients))
        if self.narrow and width <= _PAYS * self._features.shape[1]:
            table, columns = self._narrowed(clients, width)
            starts = np.cumsum([0, *map(len, own[:-1])])
            chosen = torch.from_numpy(places + starts[:, None])
        return Feed(
            table=table,
            rows=chosen,
            labels=labels,
            batches=batches,
            columns=columns,
            scale=self.data.scale,
            offset=self.data.offset,
        )

    @cached_property
    def _features(self) -> NDArray[Any]:
        features: NDArray[Any] = self.data.features.flatten(1).numpy()
        return features

    def used_by(self, client: int) -> NDArray[np.int64]:
        """The features that are not zero in all examples of a client."""
        if client not in self._used:
            examples = self._features[self.data.examples(client)]
            words = examples.view(np.uint32) if examples.shape[1] * examples.itemsize % 4 == 0 else examples
            together = np.bitwise_or.reduce(words, axis=0).view(examples.dtype.str.replace("f", "u"))
            self._used[client] = np.flatnonzero(together)
        return self._used[client]

    def _narrow_examples(self, client: int) -> NDArray[Any]:
        if client in self._kept:
            return self._kept[client]
        # A way to index that gives rows contiguous in memory; mode="clip" only saves a check.
        own = self._features[self.data.examples(client)]
        examples: NDArray[Any] = own.take(self.used_by(client), axis=1, mode="clip")
        if examples.nbytes <= self.memory:
            self.memory -= examples.nbytes
            self._kept[client] = examples
        return examples

    def _narrowed(self, clients: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
        """Their examples one after the other without unused features, and which these are (filled up with 0)."""
        several = [self._narrow_examples(client) for client in clients]
        numbers = sum(map(len, several)) * width
        if self._scratch is None or self._scratch.size < numbers:
            self._scratch = np.empty(numbers, self._features.dtype)
        table = self._scratch[:numbers].reshape(-1, width)
        columns = np.zeros((len(clients), width), np.int64)
        start = 0
        for client, examples, column in zip(clients, several, columns, strict=True):
            end, used = start + len(examples), examples.shape[1]
            table[start:end, :used], table[start:end, used:] = examples, 0
            column[:used] = self.used_by(client)
            start = end
        return torch.from_numpy(table), torch.from_numpy(columns)
