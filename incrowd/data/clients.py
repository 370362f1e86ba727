"""A federated data set: shared examples, the clients' index lists, and what the server holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd.data._tensors import shared_tensor
from incrowd.data.arrays import MapDataset, from_arrays, from_dataset
from incrowd.data.dealing import by_column
from incrowd.data.examples import Examples, Split, check_alike
from incrowd.data.inputs import Inputs, joined
from incrowd.data.partition import Indices, Partition, Sizes
from incrowd.errors import DataError
from incrowd.privacy.plan.declared import check_declared

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """The arrays of `Clients` as CPU tensors over the same memory. Do not write to them."""

    features: Inputs
    labels: "torch.Tensor"
    offsets: "torch.Tensor"
    indices: "torch.Tensor"


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """Clients over shared examples: client k holds ``examples.features[data.client(k)]``, and nothing is copied.

    ``examples`` and ``partition`` are private and stand for what clients hold at home; ``test`` is public and the
    server's. ``declared`` is the public number of clients where life has dealt, and nobody may count them; without it
    the clients were dealt, and their number is no secret. ``name`` is what the ledger of the data knows them by, and
    ``public`` says that nobody is to be protected. ``owners`` names the clients, in order, where they have names.

    Guarantee: every client has an example and every index points at one; ``nbytes`` counts all memory beyond the
    examples; ``clients`` and ``describe`` are the same for all data of which the same is declared.

    Edge cases: an index beyond the examples, test examples that look different: `DataError`; fewer or more clients than
    the declared number allows: `ConfigError`, which does not say how many (`incrowd.privacy.plan.declared`).
    """

    examples: Examples
    partition: Partition
    test: Examples | None = None
    name: str = "arrays"
    declared: int | None = None
    public: bool = False
    owners: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.owners is not None and len(self.owners) != self.partition.clients:
            raise DataError("owners must hold one name for each client")
        if self.declared is not None:
            _validate.count(clients=self.declared)
            check_declared(self.declared, held=self.partition.clients, field="clients", what="the clients in the data")
        indices = self.partition.indices
        if indices.max() >= len(self.examples):
            place = int(np.flatnonzero(indices >= len(self.examples))[0])
            raise DataError(
                f"client {self.partition.holder(place)} holds the index {indices[place]}: "
                f"there are {len(self.examples)} examples, give indices from 0 to {len(self.examples) - 1}"
            )
        if self.test is not None:
            check_alike(self.examples, self.test)

    @classmethod
    def of(cls, split: Split, partition: Partition, *, public: bool = False) -> "Clients":
        """Deal the training part of a split out to clients; the server keeps the test part."""
        return cls(examples=split.train, partition=partition, test=split.test, name=split.name, public=public)

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        labels: Any,
        *,
        owner: ArrayLike,
        name: str = "",
        clients: int | None = None,
        classes: int | None = None,
        test: tuple[Any, Any] | None = None,
        public: bool = False,
        scale: float = 1.0,
        offset: float = 0.0,
    ) -> "Clients":
        """One client for each distinct ``owner``, one of whom is stated for each example.

        ``clients`` is the public number of clients, of which nobody is counted: state it unless the data are
        ``public``. ``test`` is a pair of features and labels that are public and that the server holds.

        Edge cases: whatever is wrong with the arrays is a `DataError` (`incrowd.data.from_arrays`).
        """
        examples = from_arrays(features, labels, classes=classes, scale=scale, offset=offset)
        return cls._owned(examples, owner, test=test, name=name, declared=clients, public=public)

    @classmethod
    def from_dataset(
        cls,
        dataset: MapDataset,
        *,
        owner: ArrayLike,
        name: str = "",
        clients: int | None = None,
        classes: int | None = None,
        test: tuple[Any, Any] | None = None,
        public: bool = False,
    ) -> "Clients":
        """The same of a map-style data set (torch's, or another) of pairs of features and a label."""
        examples = from_dataset(dataset, classes=classes)
        return cls._owned(examples, owner, test=test, name=name, declared=clients, public=public)

    @classmethod
    def from_partitions(
        cls,
        parts: Mapping[str, tuple[Any, Any]],
        *,
        name: str = "",
        clients: int | None = None,
        classes: int | None = None,
        test: tuple[Any, Any] | None = None,
        public: bool = False,
    ) -> "Clients":
        """Clients as they are: features and labels of each, by the client's name.

        Edge cases: no client, or clients whose examples do not look alike: `DataError`.
        """
        each = [from_arrays(x, y, classes=classes) for x, y in parts.values()]
        if not each:
            raise DataError("there is no client: give features and labels of at least one")
        for one in each[1:]:
            check_alike(each[0], one)
        owner = np.repeat(np.array(list(parts), str), [len(one) for one in each])
        together = from_arrays(
            joined([one.features for one in each]),
            np.concatenate([one.labels for one in each]),
            classes=classes,
        )
        return cls._owned(together, owner, test=test, name=name, declared=clients, public=public)

    @classmethod
    def _owned(
        cls,
        examples: Examples,
        owner: ArrayLike,
        *,
        test: tuple[Any, Any] | None,
        name: str,
        declared: int | None,
        public: bool,
    ) -> "Clients":
        whose = np.asarray(owner)
        partition = by_column(whose)
        if len(whose) != len(examples):
            raise DataError(f"owner has {len(whose)} entries for {len(examples)} examples: say whose each example is")
        held = None
        if test is not None:
            held = from_arrays(*test, classes=examples.classes, scale=examples.scale, offset=examples.offset)
        return cls(
            examples=examples,
            partition=partition,
            test=held,
            name=name,
            declared=declared,
            public=public,
            owners=tuple(map(str, np.unique(whose))),
        )

    @property
    def clients(self) -> int:
        """The public number of clients K: those of the highest numbers may be missing."""
        return self.partition.clients if self.declared is None else self.declared

    @property
    def present(self) -> int:
        """How many clients there are, which is private where a number is declared."""
        return self.partition.clients

    @property
    def sizes(self) -> Sizes:
        """The number of examples of each client, which is private."""
        return self.partition.sizes

    @property
    def nbytes(self) -> int:
        """Memory held beyond the examples."""
        return self.partition.nbytes

    def client(self, k: int) -> Indices:
        """The indices of client k's examples, a view."""
        return self.partition.client(k)

    def as_tensors(self) -> Tensors:
        """Features, labels, offsets and indices for torch, without a copy."""
        features, labels = self.examples.as_tensors()
        return Tensors(
            features=features,
            labels=labels,
            offsets=shared_tensor(self.partition.offsets),
            indices=shared_tensor(self.partition.indices),
        )

    def describe(self) -> dict[str, str | int]:
        """What a report may say: public facts only, so neither a client's size nor the number of private examples."""
        if self.test is None:
            test = "none"
        else:
            test = f"{len(self.test)} examples, public: held by the server, not by any client"
        return {"data": self.name, "clients": self.clients, "test_set": test}
