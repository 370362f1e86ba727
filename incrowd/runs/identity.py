"""Which data a run is about: their name and a fingerprint of their content, as the ledger knows them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from incrowd.data import Clients
from incrowd.data.rows import example_rows, owner_digests, table_rows, table_rows_by
from incrowd.errors import ConfigError
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.identity import PUBLIC_KEY, DataIdentity, fingerprint
from incrowd.runs.build import enrolled, federated_data, mnist_folder, section, whole_split
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import DigitsData, MnistData, Parties, PartitionedData, Table

_NOT_PUBLIC = "leave data.public out"


def identity_of(config: CommonSections, held: Clients | None = None) -> DataIdentity:
    """The data of a run that protects whole clients; `held` are its clients, if they are loaded already.

    Guarantee: the fingerprint is over what is in the file, or in the examples before they are divided: all columns of
    every row. It does not depend on the order of rows, on the file's name, on features or on the model. Who is a client
    (the column of a table, or how examples were divided) is the identity's `division`.

    Edge cases: data that are declared public and known as somebody's, in whatever unit, raise `LedgerMismatch`. The
    embedded digits never are. A test file is declared public by being one: private data that have a ledger are refused
    as such, and so is the run's own private table (`ConfigError`), for what is measured there is not paid for.
    """
    with section("data"):
        source = _source(config, held)
        return DataIdentity(
            name=source.name,
            public=source.public,
            unit="client",
            division=source.division("client"),
            fingerprint=_whole(source),
        )


def identities_of_silos(config: CommonSections, held: Clients | None = None) -> list[DataIdentity]:
    """The data of each silo, whose records are protected: see `identity_of`. The fingerprint is over its own rows;
    `whole` is that of all silos' together, and `division` says how they were divided.
    """
    with section("data"):
        source = _source(config, held)
        whole, key, silos = _whole(source), _key(source), source.by_silo()
        common = DataIdentity(name=source.name, public=source.public, unit="record", division=source.division("silo"))
        if source.may_be_private:
            for place, rows in enumerate(silos, start=1):
                _check_public(_of_silo(common.name, place), rows, remedy=_NOT_PUBLIC)
        return [
            replace(common, name=_of_silo(common.name, place), fingerprint=fingerprint(rows, key=key), whole=whole)
            for place, rows in enumerate(silos, start=1)
        ]


class IdentifiedData(Protocol):
    """Where examples come from, as a ledger has to know it."""

    @property
    def name(self) -> str:
        """What the data are called."""
        ...

    @property
    def public(self) -> bool:
        """Whether they are declared public."""
        ...

    @property
    def may_be_private(self) -> bool:
        """Whether data that are declared public might be somebody's."""
        ...

    def division(self, unit: str) -> str:
        """Who is a client, or a silo."""
        ...

    def rows(self) -> Iterable[bytes]:
        """Every example, as bytes."""
        ...

    def by_silo(self) -> list[list[bytes]]:
        """The same of each silo, in the order of their places."""
        ...

    def check_test(self, private: str | None) -> None:
        """What is measured on test examples is shown and not charged, so they must not be what is to be protected,
        whose fingerprint this is.
        """
        ...


def _source(config: CommonSections, held: Clients | None) -> IdentifiedData:
    data = config.data
    if isinstance(data, Table):
        return _IdentifiedTable(data)
    if isinstance(data, Parties):
        return _PartiesElsewhere(data)
    if isinstance(data, PartitionedData):
        return _PartitionedExamples(data, config)
    return _Own(federated_data(config) if held is None else held)


@dataclass(frozen=True)
class _IdentifiedTable:
    """A table's rows, all columns of them."""

    data: Table

    @property
    def name(self) -> str:
        return str(self._path.resolve()) if self.data.identity is None else self.data.identity

    @property
    def public(self) -> bool:
        return self.data.public

    @property
    def may_be_private(self) -> bool:
        return self.data.public

    def division(self, unit: str) -> str:
        without = "" if self.data.holdout_clients is None else f", {self.data.holdout_clients!r} of them held out"
        return f"one {unit} for each {self.data.client}{without}"

    def rows(self) -> Iterable[bytes]:
        return table_rows(self._path, self.data.meaning().reading)

    def by_silo(self) -> list[list[bytes]]:
        return list(table_rows_by(self._path, self.data.client, self.data.meaning().reading).values())

    def check_test(self, private: str | None) -> None:
        if self.data.test_file is None:
            return
        test = _IdentifiedTable(self.data.model_copy(update={"file": self.data.test_file, "identity": None}))
        if private is not None and fingerprint(test.rows(), key=_key(test)) == private:
            remedy = (
                "it holds the private table itself, and what is measured on it is not paid for: name public examples"
            )
            raise ConfigError(field="test_file", value=self.data.test_file, remedy=remedy)
        remedy = "what is measured on them is not paid for, so name another data.test_file"
        _check_public(test.name, test.rows(), remedy=remedy)

    @property
    def _path(self) -> Path:
        return Path(self.data.folder or ".") / self.data.file


@dataclass(frozen=True)
class _PartiesElsewhere:
    """Parties whose data nobody here has seen: they are known by the name of the federation alone, whoever joins it or
    leaves it. What each has given it knows from its own ledger.
    """

    data: Parties

    @property
    def name(self) -> str:
        return f"the parties of {self.data.federation}"

    @property
    def public(self) -> bool:
        return False

    @property
    def may_be_private(self) -> bool:
        return False

    def division(self, unit: str) -> str:
        return f"one {unit} for each party"

    def rows(self) -> Iterable[bytes]:
        return [self.name.encode()]

    def by_silo(self) -> list[list[bytes]]:
        return [[f"{self.name}: {party}".encode()] for party in enrolled(self.data)]

    def check_test(self, private: str | None) -> None:
        pass


@dataclass(frozen=True)
class _PartitionedExamples:
    """Examples before they are divided."""

    data: DigitsData | MnistData
    config: CommonSections

    @property
    def name(self) -> str:
        if self.data.identity is not None:
            return self.data.identity
        return self.data.name if isinstance(self.data, DigitsData) else str(mnist_folder(self.data.folder).resolve())

    @property
    def public(self) -> bool:
        return self.data.public

    @property
    def may_be_private(self) -> bool:
        return self.data.public and not isinstance(self.data, DigitsData)  # the digits come with this package

    def division(self, unit: str) -> str:
        data = self.data
        given = {name: getattr(data, name) for name in ("per_client", "alpha", "sigma", "validation")}
        numbers = "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)
        return f"{data.partition} over {data.clients} {unit}s, seed {data.seed}{numbers}"

    def rows(self) -> Iterable[bytes]:
        return example_rows(whole_split(self.data).train)

    def by_silo(self) -> list[list[bytes]]:
        partitioned = federated_data(self.config)
        return [
            list(example_rows(partitioned.examples, partitioned.client(silo))) for silo in range(partitioned.clients)
        ]

    def check_test(self, private: str | None) -> None:
        pass


@dataclass(frozen=True)
class _Own:
    """Clients that a program, or a function of one's own, gave: their examples, or the rows of a data frame."""

    data: Clients

    @property
    def name(self) -> str:
        return self.data.name or "arrays"

    @property
    def public(self) -> bool:
        return self.data.public

    @property
    def may_be_private(self) -> bool:
        return self.data.public

    def division(self, unit: str) -> str:
        owner = "owner" if self.data.rows is None or self.data.table is None else self.data.table.client
        return f"one {unit} for each {owner}"

    def rows(self) -> Iterable[bytes]:
        each = self._of_owners() if self.data.rows is None else self.data.rows.values()
        return (row for rows in each for row in rows)

    def _of_owners(self) -> Iterable[list[bytes]]:
        if self.data.rows is None or self.data.owners is None:
            return ([digest] for digest in owner_digests(self.data))
        return (list(self.data.rows[owner]) for owner in self.data.owners)

    def by_silo(self) -> list[list[bytes]]:
        return list(self._of_owners())

    def check_test(self, private: str | None) -> None:
        test = self.data.test
        if test is None:
            return
        rows = list(example_rows(test))
        if private is not None and set(rows) <= set(example_rows(self.data.examples)):
            remedy = "they are all examples of clients, and what is measured on them is not paid for: give public ones"
            raise ConfigError(field="test", value=f"{len(rows)} examples", remedy=remedy)
        remedy = "what is measured on them is not paid for, so give another test"
        _check_public(f"{self.name}, test", rows, remedy=remedy)


def _whole(source: IdentifiedData) -> str:
    """The fingerprint of all the data, which are what they are said to be."""
    whole = fingerprint(source.rows(), key=_key(source))
    if source.may_be_private:
        _check_public(source.name, source.rows(), remedy=_NOT_PUBLIC)
    source.check_test(None if source.public else whole)
    return whole


def _check_public(name: str, rows: Iterable[bytes], *, remedy: str) -> None:
    """The data are not known as somebody's: under this name, as silos of it, or by their content."""
    home = Home.of_user()
    if home.registry.path.exists():
        content = fingerprint(rows, key=home.key())
        for known_as in (name, _of_silo(name, 1)):
            home.check_public(known_as, content, remedy=remedy)


def _key(source: IdentifiedData) -> bytes:
    return PUBLIC_KEY if source.public else Home.of_user().key()


def _of_silo(name: str, place: int) -> str:
    return f"{name}, silo-{place}"
