"""A federated data set: shared examples, the clients' index lists, and what the server holds."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from incrowd import _validate
from incrowd.data._tensors import shared_tensor
from incrowd.data.examples import Examples, Split, check_alike
from incrowd.data.partition import Indices, Partition, Sizes
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.plan.declared import check_declared

if TYPE_CHECKING:
    import torch

TestClients = Literal["separate", "shared"]
"""Whether those whom the test examples are from hold none of the others, or may."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """The arrays of `Clients` as CPU tensors over the same memory. Do not write to them."""

    features: "torch.Tensor"
    labels: "torch.Tensor"
    offsets: "torch.Tensor"
    indices: "torch.Tensor"


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """Clients over shared examples: client k holds ``examples.features[data.client(k)]``, and nothing is copied.

    ``examples`` and ``partition`` are private and stand for what clients hold at home; ``test`` is public and the
    server's. ``declared`` is the public number of clients where life has dealt, and nobody may count them; without it
    the clients were dealt, and their number is no secret. ``names`` are the clients' own, where they have any, and as
    private as they are. ``test_clients`` is "shared" where the test examples may be from clients who also train: then
    they are neither public nor unseen, and `describe` says so.

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
    names: tuple[str, ...] = field(default=(), repr=False)
    test_clients: TestClients = "separate"

    def __post_init__(self) -> None:
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
        if self.names and len(self.names) != self.partition.clients:
            raise DataError("there are more or fewer names than clients: give each client one")
        if self.test_clients not in ("separate", "shared"):
            raise ConfigError(field="test_clients", value=self.test_clients, remedy="choose from separate, shared")

    @classmethod
    def of(cls, split: Split, partition: Partition) -> "Clients":
        """Deal the training part of a split out to clients; the server keeps the test part."""
        return cls(examples=split.train, partition=partition, test=split.test, name=split.name)

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
        elif self.test_clients == "shared":
            test = "clients who may also train: neither public nor unseen; what is measured is not paid for"
        else:
            test = f"{len(self.test)} examples, public: held by the server, not by any client"
        return {"data": self.name, "clients": self.clients, "test_set": test}
