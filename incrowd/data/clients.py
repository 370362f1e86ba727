"""A federated data set: shared examples, the clients' index lists, and what the server holds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.data.arrays import Classes, MapDataset, from_arrays, from_dataset
from incrowd.data.columns import Columns
from incrowd.data.examples import Examples, Split, check_alike
from incrowd.data.fingerprints import Cells
from incrowd.data.inputs import Inputs, joined, shared_tensor
from incrowd.data.partition import Indices, Partition, Sizes, by_column, end_to_end, names_of
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.plan.sampling import check_declared, named_places

if TYPE_CHECKING:
    import torch


TestClients = Literal["separate", "shared"]
"""Whether those whom the test examples are from hold none of the others, or may."""

MEASURED = (
    "exact figures of people who train are releases that nothing pays for: give a public test table, or leave it out "
    "and measure with `incrowd evaluate` (Federation.evaluate), which pays"
)
"""What to do about test examples that are private."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """The arrays of `Clients` as CPU tensors over the same memory. Do not write to them."""

    features: Inputs
    labels: "torch.Tensor"
    offsets: "torch.Tensor"
    indices: "torch.Tensor"


class PublicFacts(TypedDict, total=False):
    """What everybody may know of clients, and somebody has to state.

    `name` is what their ledger knows them by, and `clients` their public number, of which nobody is counted; both may
    be left out of data that are `public`, where nobody is to be protected. `test` is a pair of features and labels, or
    a table where one is loaded, that are public and that the server holds.
    """

    name: str
    clients: int | None
    test: Any
    public: bool


def check_stated(stated: PublicFacts) -> None:
    """Refuse what is no argument: nothing is ignored."""
    unknown = stated.keys() - PublicFacts.__annotations__.keys()
    if unknown:
        field = min(unknown)
        remedy = f"there is no such argument; known are {', '.join(PublicFacts.__annotations__)}"
        raise ConfigError(field=field, value=dict(stated)[field], remedy=remedy)


def check_test_clients(test_clients: str, *, public: bool) -> None:
    """Refuse to measure clients who also train, unless nobody is to be protected."""
    if test_clients not in ("separate", "shared"):
        raise ConfigError(field="test_clients", value=test_clients, remedy="choose from separate, shared")
    if test_clients == "shared" and not public:
        raise ConfigError(field="test_clients", value=test_clients, remedy=MEASURED)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """Clients over shared examples: client k holds ``examples.features[data.client(k)]``, and nothing is copied.

    ``examples`` and ``partition`` are private and stand for what clients hold at home; ``test`` is public and the
    server's. ``declared`` is the public number of clients of real data, whom nobody may count; without it the examples
    were divided among simulated clients, and their number is no secret. ``name`` is what the ledger of the data knows
    them by, and ``public`` says that nobody is to be protected. ``owners`` names the clients, in order, where they have
    names. ``names`` are theirs as well, where everybody may know them: silos (see `named`). ``table`` says what
    the columns mean where the examples are rows of one, and ``file`` is that table, if it is a file;
    ``label_names`` are the classes in order, where they have names.
    ``originals`` are the examples before they were scaled, where a ledger is to know the data by these;
    ``cells`` are those of a data frame, all columns, by which a ledger knows it again, and ``test_cells`` those of its
    test table.
    ``test_clients`` is "shared" where the test examples may be from clients who also train: only of data that are
    public, for what is measured is not paid for.

    Guarantee: every client has an example and every index points at one; ``nbytes`` counts all memory beyond the
    examples; ``clients`` and ``describe`` are the same for all data of which the same is declared.

    Edge cases: an index beyond the examples, test examples that look different: `DataError`; fewer or more clients than
    the declared number allows: `ConfigError`, which does not say how many (`incrowd.privacy.plan.sampling`).
    """

    examples: Examples
    partition: Partition
    test: Examples | None = None
    name: str = "arrays"
    declared: int | None = None
    public: bool = False
    owners: tuple[str, ...] | None = field(default=None, repr=False)
    test_clients: TestClients = "separate"
    names: tuple[str, ...] = ()
    table: Columns | None = field(default=None, repr=False)
    file: Path | None = field(default=None, repr=False)
    label_names: tuple[str, ...] = ()
    originals: Examples | None = field(default=None, repr=False)
    cells: Cells | None = field(default=None, repr=False)
    test_cells: Cells | None = field(default=None, repr=False)

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
        if self.names and self.names != self.owners:
            raise ConfigError(field="names", value=self.names, remedy="they are not those of the clients: see owners")
        check_safe(self.names)
        check_test_clients(self.test_clients, public=self.public)

    @classmethod
    def of(cls, split: Split, partition: Partition, *, public: bool = False) -> "Clients":
        """Divide the training part of a split among clients; the server keeps the test part."""
        return cls(examples=split.train, partition=partition, test=split.test, name=split.name, public=public)

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        labels: Any,
        *,
        owner: ArrayLike,
        classes: Classes = None,
        scale: float | None = None,
        offset: float = 0.0,
        **stated: Unpack[PublicFacts],
    ) -> "Clients":
        """One client for each distinct ``owner``, one of whom is stated for each example; see `PublicFacts`.

        Edge cases: whatever is wrong with the arrays is a `DataError` (`incrowd.data.from_arrays`).
        """
        examples = from_arrays(features, labels, classes=classes, scale=scale, offset=offset)
        return cls._owned(examples, owner, stated, classes)

    @classmethod
    def from_dataset(
        cls, dataset: MapDataset, *, owner: ArrayLike, classes: Classes = None, **stated: Unpack[PublicFacts]
    ) -> "Clients":
        """The same of a map-style data set (torch's, or another) of pairs of features and a label."""
        return cls._owned(from_dataset(dataset, classes=classes), owner, stated, classes)

    @classmethod
    def from_partitions(
        cls, parts: Mapping[str, tuple[Any, Any]], *, classes: Classes = None, **stated: Unpack[PublicFacts]
    ) -> "Clients":
        """Clients as they are: features and labels of each, by the client's name, in this order.

        Edge cases: no client, or clients whose examples do not look alike: `DataError`.
        """
        each = [from_arrays(x, y, classes=classes) for x, y in parts.values()]
        if not each:
            raise DataError("there is no client: give features and labels of at least one")
        for one in each[1:]:
            check_alike(each[0], one)
        features, labels = joined([one.features for one in each]), np.concatenate([one.labels for one in each])
        together = from_arrays(features, labels, classes=each[0].classes)
        sizes = np.array([len(one) for one in each], np.int64)
        return cls._stated(together, end_to_end(np.arange(sizes.sum()), sizes), tuple(map(str, parts)), stated, classes)

    @classmethod
    def _owned(cls, examples: Examples, owner: ArrayLike, stated: PublicFacts, classes: Classes) -> "Clients":
        partition, owner = by_column(owner), names_of(owner)
        if len(owner) != len(examples):
            raise DataError(f"owner has {len(owner)} entries for {len(examples)} examples: say whose each example is")
        return cls._stated(examples, partition, tuple(map(str, np.unique(owner))), stated, classes)

    @classmethod
    def _stated(
        cls,
        examples: Examples,
        partition: Partition,
        owners: tuple[str, ...],
        stated: PublicFacts,
        classes: Classes,
    ) -> "Clients":
        check_stated(stated)
        test, held = stated.get("test"), None
        if test is not None:
            held = from_arrays(*test, classes=classes, scale=examples.scale, offset=examples.offset)
        return cls(
            examples=examples,
            partition=partition,
            test=held,
            name=stated.get("name", ""),
            declared=stated.get("clients"),
            public=stated.get("public", False),
            owners=owners,
            label_names=() if classes is None or isinstance(classes, int) else tuple(map(str, classes)),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are learned from, where the examples are rows of a table."""
        return () if self.table is None else self.table.features

    def named(self) -> "Clients":
        """The same clients, whose names everybody may know: as silos they are called by them, in folders and reports.

        Edge cases: clients without names, or with names that no folder can have: `ConfigError`.
        """
        if self.owners is None:
            raise ConfigError(field="owners", value=None, remedy="these clients have no names")
        return replace(self, names=self.owners)

    @property
    def clients(self) -> int:
        """The public number of clients K: those of the highest numbers may be missing."""
        return self.partition.clients if self.declared is None else self.declared

    @property
    def present(self) -> int:
        """How many clients there are, which is private where a number is declared."""
        return self.partition.clients

    @property
    def places(self) -> NDArray[np.int64] | None:
        """The public place of each client, from which its turn follows: by a roster whose names everybody knows, or by
        its own name. Simulated clients, and unnamed ones, have none.
        """
        if self.declared is None or self.owners is None:
            return None
        return np.arange(len(self.names)) if self.names else named_places(self.owners)

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
            test = "clients who may also train, so it is not unseen"
        else:
            test = f"{len(self.test)} examples, public: held by the server, not by any client"
        return {"data": self.name, "clients": self.clients, "test_set": test}


_SAFE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"(the )?server|text|(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", re.IGNORECASE)
"""The server's own names, that of all statements' text, and what no file may be called on Windows."""


def check_safe(names: tuple[str, ...]) -> None:
    """Refuse names that cannot be those of folders, each of its own, on every system."""
    for name in names:
        if not _SAFE.fullmatch(name) or _RESERVED.fullmatch(name):
            remedy = (
                "it is to be a folder's: use up to 64 letters, digits, '-', '_', '.' and blanks, a letter or a digit "
                "first, not 'server'; or leave names out, and the silos are called silo-1, silo-2, ..."
            )
            raise ConfigError(field="names", value=name, remedy=remedy)
    if len({name.casefold() for name in names}) != len(names):
        remedy = "two of them are the same folder where case does not count: rename one"
        raise ConfigError(field="names", value=names, remedy=remedy)


def check_names(names: tuple[str, ...], *, actual: tuple[str, ...], public: bool) -> None:
    """Refuse stated names that are not those of the clients who are there, in their order.

    Guarantee: of private clients, the refusal does not say which names are there, nor how many.
    """
    check_safe(names)
    if tuple(sorted(names)) == actual and names != actual:
        raise ConfigError(field="names", value=names, remedy=f"give them in order: {', '.join(actual)}")
    if names != actual:
        shown = f": they are {', '.join(actual)}" if public else ", which are for their owner to see"
        raise ConfigError(field="names", value=names, remedy=f"these are not the clients in the table{shown}")


def hold_out_clients(data: Clients, *, share: float, randomness: Randomness) -> Clients:
    """Put a share of the clients, chosen at random, aside: all their examples become the test set.

    Whoever does this declares these clients public, and how many there are.

    Guarantee: no client is on both sides; the others keep their order, and their examples are not copied.

    Edge cases: a test set that is there already, or a share that leaves nobody to train: `ConfigError`.
    """
    _validate.fraction(holdout_clients=share)
    aside = max(1, round(share * data.present))
    if data.test is not None or aside >= data.present:
        remedy = "leave at least one client to train, and no other test set"
        raise ConfigError(field="holdout_clients", value=share, remedy=remedy)
    order = np.argsort(randomness.stream("hold out").bits(data.present), kind="stable")
    held, kept = np.sort(order[:aside]), np.sort(order[aside:])
    owners = None if data.owners is None else tuple(data.owners[client] for client in kept)
    return replace(
        data,
        partition=Partition.of([data.client(int(client)) for client in kept]),
        test=data.examples.some(np.sort(np.concatenate([data.client(int(client)) for client in held]))),
        owners=owners,
        names=owners if owners and data.names else (),
    )


def stand_in(examples: Examples, names: tuple[str, ...], *, name: str, columns: Columns | None = None) -> Clients:
    """As many clients as there are names, each of which holds the one made-up example.

    Guarantee: what is built around them knows of the parties their number, their names, and what examples look like.
    """
    places = np.zeros(len(names), np.int64)
    return Clients(
        examples=examples,
        partition=Partition(offsets=np.arange(len(names) + 1), indices=places),
        name=name,
        declared=len(names),
        owners=names,
        names=names,
        table=columns,
    )


def made_up_row(columns: Columns) -> Examples:
    """One example of a table whose features are named: every number is 0, and so is the label."""
    return made_up_array((len(columns.numbers()),), "float32", classes=columns.number_of_classes)


def made_up_array(
    shape: tuple[int, ...], kind: str, *, classes: int | None, scale: float = 1.0, offset: float = 0.0
) -> Examples:
    """One example of arrays: zeros."""
    features = np.zeros((1, *shape), np.dtype(kind))
    labels = np.zeros(1, np.float32 if classes is None else np.int64)
    return from_arrays(features, labels, classes=classes, scale=scale, offset=offset)
