"""Federated data: the doors for a user's data, the clients' examples, and the public facts about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _extensions, _validate
from incrowd._random import SeededRandomness
from incrowd.data.columns import Columns
from incrowd.data.examples import Classes, Examples, Split, check_alike, from_arrays, from_dataset, joined
from incrowd.data.fingerprints import Cells, table_cells
from incrowd.data.partition import (
    Indices,
    Partition,
    Sizes,
    by_column,
    check_names,
    check_safe,
    end_to_end,
    names_of,
    names_of_rows,
)
from incrowd.data.reading import AS_USUAL, Reading, TableSource
from incrowd.data.sources import read_pictures
from incrowd.data.tables import check_separate, read_stated_table, read_table
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.plan.sampling import check_declared, named_places

TestClients = Literal["separate", "shared"]
"""Whether the clients of the test examples may also train ("shared") or not ("separate")."""

MEASURED = (
    "exact figures of people who train are releases that nothing pays for: give a public test table, or leave it out "
    "and measure with `incrowd evaluate` (Federation.evaluate), which pays"
)
"""The remedy for private test examples."""


class PublicFacts(TypedDict, total=False):
    """Public facts about clients, which you state.

    `name` identifies the ledger of the data, and `clients` is their public number; incrowd counts nobody. `public` data
    protect nobody, and may omit both. `test` is a public pair of features and labels, or a table, for the server.
    """

    name: str
    clients: int | None
    test: Any
    public: bool


class TableFacts(PublicFacts, total=False):
    """Public facts about the clients of a table.

    `names` are the clients' public names, if they are silos. `holdout_clients` is the share of a public table's clients
    that form the test set.
    """

    test_clients: TestClients
    holdout_clients: float | None
    names: tuple[str, ...]


def check_stated(stated: Mapping[str, Any], facts: type = PublicFacts) -> None:
    """Refuse an unknown argument."""
    known = get_type_hints(facts)
    if unknown := stated.keys() - known.keys():
        remedy = f"there is no such argument; known are {', '.join(known)}"
        raise ConfigError(field=min(unknown), value=stated[min(unknown)], remedy=remedy)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """Clients over shared examples: client k holds ``examples.features[data.client(k)]``, without a copy.

    `examples` and `partition` are private and stand for the data at the clients. `test` is public; the server holds it.
    `declared` is the public number of real clients; simulated clients have none. `name` identifies the ledger, and
    `public` data protect nobody. `owners` are the clients' names in order, and `names` are the same if they are public,
    as those of silos. `originals` are the examples before scaling, for the ledger.

    Guarantee: each client has an example, and each index is valid. `clients` and `describe` are equal for all data
    with equal public facts. The error for a number of clients that does not fit the declared one does not reveal it.
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
            last = len(self.examples) - 1
            raise DataError(
                f"client {self.partition.holder(place)} holds the index {indices[place]}: "
                f"there are {last + 1} examples, give indices from 0 to {last}"
            )
        if self.test is not None:
            check_alike(self.examples, self.test)
        if self.names and self.names != self.owners:
            raise ConfigError(field="names", value=self.names, remedy="they are not those of the clients: see owners")
        check_safe(self.names)
        if self.test_clients not in ("separate", "shared"):
            raise ConfigError(field="test_clients", value=self.test_clients, remedy="choose from separate, shared")
        if self.test_clients == "shared" and not self.public:
            raise ConfigError(field="test_clients", value=self.test_clients, remedy=MEASURED)

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
        owner: ArrayLike | None = None,
        classes: Classes = None,
        scale: float | None = None,
        offset: float = 0.0,
        **stated: Unpack[PublicFacts],
    ) -> "Clients":
        """One client for each distinct `owner` of an example, or for each example without owners.

        Features and labels are arrays, tensors, lists, frames of numbers, or a dict or a tuple of these. See
        `incrowd.data.from_arrays` and `PublicFacts`.
        """
        examples = from_arrays(features, labels, classes=classes, scale=scale, offset=offset)
        return cls._owned(examples, owner, stated, classes)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        owner: ArrayLike | str | None = None,
        features: str | Sequence[str] = (),
        label: str = "label",
        classes: Classes = None,
        **stated: Unpack[PublicFacts],
    ) -> "Clients":
        """The same for a map-style data set: torch's, with pairs, or Hugging Face's, with dicts.

        Of dicts, `features`, `label` and `owner` are keys.
        """
        examples = from_dataset(dataset, classes=classes, features=features, label=label)
        if isinstance(owner, str):
            column = hasattr(dataset, "column_names")  # Hugging Face reads a column without the pictures beside it
            owner = list(dataset[owner]) if column else [dataset[row][owner] for row in range(len(dataset))]
        return cls._owned(examples, owner, stated, classes)

    @classmethod
    def from_table(
        cls,
        source: TableSource,
        *,
        columns: Columns | Mapping[str, Any] | None = None,
        label: str = "",
        client: str | None = None,
        features: Sequence[str] = (),
        classes: int | Sequence[str] | None = None,
        reading: Reading = AS_USUAL,
        **stated: Unpack[TableFacts],
    ) -> "Clients":
        """One client for each name in the column `client`, in order, or for each row.

        The source is a path, a pandas or Polars frame, an Arrow table, a Hugging Face data set, or rows as dicts.
        `columns` are words as in settings (`columns_of`), or `Columns` with all the rest.

        Guarantee: an error about a private table shows neither a client's name nor the number of clients.
        """
        check_stated(stated, TableFacts)
        if not isinstance(columns, Columns):
            labels = classes if isinstance(classes, int | None) else tuple(classes)
            columns = Columns(
                client=client,
                label=label,
                features=tuple(features),
                classes=labels,
                schema=columns or {},
                reading=reading,
            )
        share, test, public = stated.get("holdout_clients"), stated.get("test"), stated.get("public", False)
        examples, owners, columns = read_stated_table(source, columns)
        held = None
        if test is not None:
            held, theirs = read_table(test, columns)
            if stated.get("test_clients", "separate") == "separate" and columns.client is not None:
                check_separate(owners, theirs, column=columns.client, test=test, public=public)
        if columns.client is None:
            partition, present = Partition.of_rows(len(examples)), names_of_rows(examples)
        else:
            partition, present = by_column(owners), tuple(np.unique(owners).tolist())
        if names := stated.get("names", ()):
            check_names(names, actual=present, public=public)
        file, cells = Path(source) if isinstance(source, str | Path) else None, list[Cells]()
        if file is None:  # a program can change a frame later; a file is read again
            frames = [each for each in (source, test) if each is not None]
            cells = [table_cells(each, columns.client, columns.reading) for each in frames]
        data = cls(
            examples=examples,
            partition=partition,
            test=held,
            name=stated.get("name", file.name if file else ""),
            declared=None if share is not None else stated.get("clients"),
            public=public,
            owners=present,
            names=names,
            test_clients=stated.get("test_clients", "separate"),
            table=columns,
            file=file,
            cells=cells[0] if cells else None,
            test_cells=cells[1] if len(cells) > 1 else None,
        )
        return data if share is None else replace(_hold_out(data, share), declared=stated.get("clients"))

    @classmethod
    def from_folder(
        cls, folder: Path | str, *, classes: Sequence[str], owners: bool = False, **stated: Unpack[PublicFacts]
    ) -> "Clients":
        """Pictures in folders CLASS, each a client, or with `owners` in folders OWNER/CLASS."""
        pictures, labels, owner = read_pictures(folder, owners=owners)
        return cls.from_arrays(pictures, labels, owner=owner if owners else None, classes=classes, **stated)

    @classmethod
    def from_partitions(
        cls, parts: Mapping[str, tuple[Any, Any]], *, classes: Classes = None, **stated: Unpack[PublicFacts]
    ) -> "Clients":
        """Features and labels of each client, by name, in this order."""
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
    def from_source(
        cls, source: str, *, arguments: Mapping[str, Any], classes: Classes = None, **stated: Unpack[PublicFacts]
    ) -> "Clients":
        """The clients that an extension reads: see `incrowd.types.DataSource`."""
        return cls.from_partitions(_extensions.found("data_sources", source)(**arguments), classes=classes, **stated)

    @classmethod
    def _owned(cls, examples: Examples, owner: ArrayLike | None, stated: PublicFacts, classes: Classes) -> "Clients":
        if owner is None:
            return cls._stated(examples, Partition.of_rows(len(examples)), names_of_rows(examples), stated, classes)
        partition, names = by_column(owner), names_of(owner)
        if len(names) != len(examples):
            raise DataError(f"owner has {len(names)} entries for {len(examples)} examples: say whose each example is")
        return cls._stated(examples, partition, tuple(map(str, np.unique(names))), stated, classes)

    @classmethod
    def _stated(
        cls, examples: Examples, partition: Partition, owners: tuple[str, ...], stated: PublicFacts, classes: Classes
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
        """The names of the columns to learn from, if the examples are rows of a table."""
        return () if self.table is None else self.table.features

    def named(self) -> "Clients":
        """The same clients with public names, for silos: folders and reports use them."""
        if self.owners is None:
            raise ConfigError(field="owners", value=None, remedy="these clients have no names")
        return replace(self, names=self.owners)

    @property
    def clients(self) -> int:
        """The public number of clients K. Fewer may be present."""
        return self.partition.clients if self.declared is None else self.declared

    @property
    def present(self) -> int:
        """The number of clients present, which is private if a number is declared."""
        return self.partition.clients

    @property
    def places(self) -> NDArray[np.int64] | None:
        """The public place of each client, which gives its turn: its number in a public roster, or a hash of its name.

        Simulated and unnamed clients have none.
        """
        if self.owners is None or (self.declared is None and not self.names):
            return None
        return np.arange(len(self.names)) if self.names else named_places(self.owners)

    @property
    def sizes(self) -> Sizes:
        """The number of examples of each client, which is private."""
        return self.partition.sizes

    def client(self, k: int) -> Indices:
        """The indices of client k's examples, a view."""
        return self.partition.client(k)

    def describe(self) -> dict[str, str | int]:
        """The public facts for a report: neither a client's size nor the number of private examples."""
        test = "none" if self.test is None else "clients who may also train, so it is not unseen"
        if self.test is not None and self.test_clients == "separate":
            test = f"{len(self.test)} examples, public: held by the server, not by any client"
        return {"data": self.name, "clients": self.clients, "test_set": test}


def _hold_out(data: Clients, share: float) -> Clients:
    """Move a random share of a public table's clients to the test set; the others keep their order.

    The seed is the same in all runs, so that they are compared on the same clients.
    """
    if not data.public:
        remedy = "a share of private clients tells how many there are: leave it out, or say public = true"
        raise ConfigError(field="holdout_clients", value=share, remedy=remedy)
    _validate.fraction(holdout_clients=share)
    aside = max(1, round(share * data.present))
    if data.test is not None or aside >= data.present:
        remedy = "leave at least one client to train, and have no other test table"
        raise ConfigError(field="holdout_clients", value=share, remedy=remedy)
    order = np.argsort(SeededRandomness(seed=0).stream("hold out").bits(data.present), kind="stable")
    held, kept = ([data.client(int(client)) for client in np.sort(some)] for some in (order[:aside], order[aside:]))
    owners = tuple(np.array(data.owners)[np.sort(order[aside:])].tolist())
    test = data.examples.some(np.sort(np.concatenate(held)))
    return replace(data, partition=Partition.of(kept), test=test, owners=owners, names=owners if data.names else ())


def stand_in(examples: Examples, names: tuple[str, ...], *, name: str, columns: Columns | None = None) -> Clients:
    """Clients with these names that each hold one synthetic example, in the place of parties with data elsewhere.

    Guarantee: a server that builds on them knows the parties' names and the form of their examples alone.
    """
    return Clients(
        examples=examples,
        partition=Partition(offsets=np.arange(len(names) + 1), indices=np.zeros(len(names), np.int64)),
        name=name,
        owners=names,
        names=names,
        table=columns,
    )


def made_up_row(columns: Columns) -> Examples:
    """One row of zeros, encoded with named features."""
    return made_up_array((len(columns.numbers()),), "float32", classes=columns.number_of_classes)


def made_up_array(
    shape: tuple[int, ...], kind: str, *, classes: int | None, scale: float = 1.0, offset: float = 0.0
) -> Examples:
    """One example of zeros."""
    features = np.zeros((1, *shape), np.dtype(kind))
    labels = np.zeros(1, np.float32 if classes is None else np.int64)
    return from_arrays(features, labels, classes=classes, scale=scale, offset=offset)
