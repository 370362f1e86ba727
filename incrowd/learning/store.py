"""The clients' examples as the engine wants them: shared tensors, and the batches of a few clients together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.data.inputs import Inputs, each, named, single
from incrowd.errors import DataError
from incrowd.learning.batches import Batches
from incrowd.learning.inputs import are_numbers, check_inputs
from incrowd.learning.rare import Rare, moderate, rare_features

if TYPE_CHECKING:
    from incrowd.data import Clients

_PAYS = 0.9  # features are dropped when at most this share of them is left
MEMORY = 512 * 2**20  # bytes of examples without unused features that are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTensors:
    """All that the engine knows about data: client k holds the examples ``indices[offsets[k]:offsets[k + 1]]``.

    Features keep the type they are stored in; what they mean is ``features * scale + offset``, as
    `incrowd.data.Examples` has it: one tensor, or several inputs. ``declared`` is the public number of clients, where
    it is another one than those that are there, ``above_equal`` by how much everyone's shares of the classes are known
    to be above equal ones (`incrowd.learning.class_shares`).
    """

    features: Inputs = field(repr=False)
    labels: Tensor = field(repr=False)
    offsets: NDArray[Any] = field(repr=False)
    indices: NDArray[Any] = field(repr=False)
    scale: float = 1.0
    offset: float = 0.0
    declared: int | None = None
    above_equal: Tensor | None = None

    def __post_init__(self) -> None:
        check_inputs(self.features)
        for one in named(self.features).values():
            if self.labels.ndim == 0 or len(self.labels) != len(one):
                raise DataError(
                    f"features have the shape {tuple(one.shape)} and labels {tuple(self.labels.shape)}: "
                    "give [examples, ...] and a label for each"
                )

    @classmethod
    def of(cls, data: "Clients") -> "ClientTensors":
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
        """The shape of one example. Edge cases: several inputs are a `DataError`."""
        return tuple(single(self.features).shape[1:])

    @property
    def plain(self) -> bool:
        """Whether features are one tensor of numbers: what the fast paths are for."""
        return are_numbers(self.features)

    @property
    def device(self) -> torch.device:
        """Where the examples are."""
        return self.labels.device

    def examples(self, client: int) -> NDArray[Any]:
        """The indices of one client's examples."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def made_up(self, examples: int) -> "ClientTensors":
        """One client with so many examples like these, all zeros: of these only shapes and types are read."""

        def zeros(one: Tensor) -> Tensor:
            return torch.zeros((examples, *one.shape[1:]), dtype=one.dtype)

        return ClientTensors(
            features=each(zeros, self.features),
            labels=zeros(self.labels),
            offsets=np.array([0, examples]),
            indices=np.arange(examples),
            scale=self.scale,
            offset=self.offset,
            above_equal=self.above_equal,
        )

    def to(self, device: torch.device) -> "ClientTensors":
        """The same with features and labels on a device."""
        return ClientTensors(
            features=each(lambda one: one.to(device), self.features),
            labels=self.labels.to(device),
            offsets=self.offsets,
            indices=self.indices,
            scale=self.scale,
            offset=self.offset,
            declared=self.declared,
            above_equal=self.above_equal,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Feed:
    """The examples of c clients, batch after batch.

    Row t * width + i of client j is example i of its step t. ``columns`` says which features the examples consist of;
    None means all of them. ``constants`` has what each of the others is in all of the client's examples, as it is
    meant, and 0 for those in ``columns``; None means that all others are 0.
    """

    table: Inputs  # [rows, ...], as stored: one tensor, but where `plain` is false
    rows: Tensor  # [c, steps * width], which row of the table
    labels: Tensor  # [c, steps * width, ...]
    batches: Batches
    columns: Tensor | None  # [c, D]
    scale: float
    offset: float
    plain: bool = True
    constants: Tensor | None = None  # [features]
    square: float = 0.0  # of the constants: the sum of their squares
    rare: Rare | None = None  # by rows of the table
    changing: Tensor | None = None  # features: those in `columns`, rare ones, and those that are constant

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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Narrow:
    """A client's examples, one after the other, of some features; see `Feed`."""

    table: Tensor
    columns: Tensor
    constants: Tensor | None
    square: float
    rare: Rare | None
    changing: Tensor

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + (0 if self.rare is None else self.rare.nbytes)


@dataclass(eq=False)
class Store:
    """Brings a client's examples together, and knows which features the client never uses.

    With ``sparing`` a client's features that are zero in all of its examples are left out, where that saves enough;
    with ``folding`` those, too, that are another moderate number in all of them, which the feed says, and with
    ``apart`` those that are in nearly all of them. Examples without such features are kept, up to ``memory`` bytes;
    those of other clients are made anew each time.

    Guarantee: what is left out of a client's examples follows from these alone.
    """

    data: ClientTensors
    sparing: bool
    folding: bool = False
    apart: bool = False
    memory: int = MEMORY
    _used: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)
    _using_all: set[int] = field(default_factory=set, init=False, repr=False)
    _kept: dict[int, _Narrow] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # Zero in storage is zero in meaning only without an offset; else it is a constant.
        zeros = self.folding or self.data.offset == 0
        self.sparing = self.sparing and self.data.plain and zeros and self.data.device.type == "cpu"

    def feed(self, clients: Sequence[int], batches: Batches) -> Feed:
        """The examples of these clients in these batches. Edge cases: features are left out for one client alone."""
        own = [self.data.examples(client) for client in clients]
        places = batches.positions.reshape(len(clients), -1)
        rows = np.stack([indices[place] for indices, place in zip(own, places, strict=True)]).astype(np.int64)
        chosen = torch.from_numpy(rows).to(self.data.device)
        labels = self.data.labels.index_select(0, chosen.view(-1)).view(*chosen.shape, *self.data.labels.shape[1:])
        narrow = self._narrow(clients[0]) if len(clients) == 1 else None
        whole = narrow is None
        return Feed(
            table=self.data.features if narrow is None else narrow.table,
            rows=chosen if whole else torch.from_numpy(places.astype(np.int64)),
            labels=labels,
            batches=batches,
            columns=None if narrow is None else narrow.columns,
            scale=self.data.scale,
            offset=self.data.offset,
            plain=self.data.plain,
            constants=None if narrow is None else narrow.constants,
            square=0.0 if narrow is None else narrow.square,
            rare=None if narrow is None else narrow.rare,
            changing=None if narrow is None else narrow.changing,
        )

    @cached_property
    def _features(self) -> NDArray[Any]:
        features: NDArray[Any] = self.data.features.flatten(1).numpy()
        return features

    def used_by(self, client: int) -> NDArray[np.int64]:
        """The features that are not zero in all examples of a client."""
        if client not in self._used:
            words = self._words(client)
            self._used[client] = np.flatnonzero(self._by_feature(np.bitwise_or.reduce(words, axis=0)))
        return self._used[client]

    def varying(self, client: int) -> NDArray[np.int64]:
        """The features that are not the same moderate number in all examples of a client, bit for bit."""
        if client not in self._used:
            words = self._words(client)
            differing = self._by_feature(np.bitwise_or.reduce(words ^ words[0], axis=0)) != 0
            self._used[client] = np.flatnonzero(differing | ~moderate(self._first(client)))
        return self._used[client]

    def _words(self, client: int) -> NDArray[Any]:
        """The bits of a client's examples, several features together where they fit."""
        examples = self._features[self.data.examples(client)]
        together = examples.shape[1] * examples.itemsize % 4 == 0
        words: NDArray[Any] = examples.view(np.uint32 if together else examples.dtype.str.replace("f", "u"))
        return words

    def _by_feature(self, words: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = words.view(self._features.dtype.str.replace("f", "u"))
        return found

    def _first(self, client: int) -> NDArray[np.float32]:
        """A client's first example, as it is meant; of what is too large for a number nobody is told."""
        stored = self._features[self.data.examples(client)[0]].astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            found: NDArray[np.float32] = stored * np.float32(self.data.scale) + np.float32(self.data.offset)
        return found

    def _narrow(self, client: int) -> _Narrow | None:
        """A client's examples without what had best be left out, if there is enough of that."""
        if client in self._kept or not self.sparing or client in self._using_all:
            return self._kept.get(client)
        used, rare = self.varying(client) if self.folding else self.used_by(client), None
        if self.apart:  # but for one, because torch does not take every matrix without columns
            own = self._features[self.data.examples(client)]
            rare = rare_features(own, used[1:], scale=self.data.scale, offset=self.data.offset)
        left = used if rare is None else np.setdiff1d(used, rare.features, assume_unique=True)
        if len(left) > _PAYS * self._features.shape[1]:
            self._using_all.add(client)
            del self._used[client]
            return None
        return self._without(client, left if left.size else np.zeros(1, np.int64), rare)  # one, as above

    def _without(self, client: int, left: NDArray[np.int64], rare: Rare | None) -> _Narrow:
        """A client's examples, one after the other, of the features that are left."""
        # A way to index that gives rows contiguous in memory; mode="clip" only saves a check.
        table = torch.from_numpy(self._features[self.data.examples(client)].take(left, axis=1, mode="clip"))
        constants = self._constants(client, left, rare) if self.folding else None
        changing = left if rare is None else np.append(left, rare.features)
        if constants is not None:
            changing = np.append(changing, np.setdiff1d(np.flatnonzero(constants), changing, assume_unique=True))
        found = _Narrow(
            table=table,
            columns=torch.from_numpy(left)[None],
            constants=constants,
            square=0.0 if constants is None else float(constants.double().square().sum()),
            rare=rare,
            changing=torch.from_numpy(changing),
        )
        if found.nbytes <= self.memory:
            self.memory -= found.nbytes
            self._kept[client] = found
        return found

    def _constants(self, client: int, left: NDArray[np.int64], rare: Rare | None) -> Tensor | None:
        """What the features that are not left are in all examples of a client, or nearly all."""
        constants = self._first(client)
        if rare is not None:
            constants[rare.features] = rare.usual
        constants[left] = 0
        return torch.tensor(constants) if constants.any() else None  # in torch's memory, as all that is multiplied
