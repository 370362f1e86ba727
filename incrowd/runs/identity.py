"""The data that a run is about: their name and a fingerprint of their content, as the ledger knows them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from incrowd.data import Clients, Examples
from incrowd.data.clients import MEASURED
from incrowd.data.fingerprints import Cells, RowDigests, digests_of_cells, digests_of_examples, table_cells
from incrowd.data.reading import read_rows
from incrowd.errors import ConfigError
from incrowd.privacy.content import Content, digests
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.tally import PUBLIC_KEY, DataIdentity, Declared
from incrowd.runs.config import Config
from incrowd.runs.data_config import DigitsData, MnistData, Parties, PartitionedData, Table
from incrowd.runs.sources import enrolled, federated_data, mnist_folder, section, whole_split

_NOT_PUBLIC = "leave data.public out"


def identities_of(config: Config, held: Clients | None = None) -> list[DataIdentity]:
    """The data that each ledger of a run is about: see `identity_of`."""
    if config.privacy.by_silo:
        return identities_of_silos(config, held)
    return [identity_of_records(config, held) if config.of_records else identity_of(config, held)]


def identity_of(config: Config, held: Clients | None = None) -> DataIdentity:
    """The data of a run that protects whole clients; `held` are its clients, if they are loaded already.

    Guarantee: the fingerprint is over what is in the file, or in the examples before they are divided: all columns of
    every row. It does not depend on the order of rows, on the file's name, on features or on the model. The division
    into clients (the column of a table, or how examples were divided) is the identity's `division`.

    Edge cases: data that are declared public, and have a ledger as private data in any unit, raise `LedgerMismatch`.
    The embedded digits never are. Test examples are declared public by being some: they must have no ledger as private
    data, and equal no training row (`ConfigError`), whatever the names of their owners.
    """
    with section("data"):
        return _identity(_source(config, held), config)[0]


def identities_of_silos(config: Config, held: Clients | None = None) -> list[DataIdentity]:
    """The data of each silo, whose records are protected: see `identity_of`. The fingerprint is over its own rows;
    `whole` is that of all silos' together, and `division` says how they were divided.
    """
    with section("data"):
        source = _source(config, held)
        common, rows = _identity(source, config)
        whole = replace(common, unit="record", division=source.division("silo"), whole=common.fingerprint)
        key = _key(source)
        return [
            replace(
                whole,
                name=_of_silo(common.name, place),
                fingerprint=its.fingerprint(key),
                content=None if common.content is None else its.content(key),
                declared=common.declared if place == 1 else (),
            )
            for place, its in enumerate(source.by_silo(rows), start=1)
        ]


def identity_of_records(config: Config, held: Clients | None = None) -> DataIdentity:
    """The records of all silos together, which one plan protects: see `identity_of`."""
    with section("data"):
        source = _source(config, held)
        common, rows = _identity(source, config)
        parts = () if common.public else tuple(its.fingerprint(_key(source)) for its in source.by_silo(rows))
        return replace(common, unit="record", division=source.division("silo"), parts=parts)


def declare_public(name: str, examples: Examples, *, remedy: str) -> None:
    """Examples with exact measurements are public from now on: they are refused if they have a ledger as private data
    (`LedgerMismatch`), and can have none later.
    """
    home = Home.of_user()
    content = digests_of_examples(examples, key=home.key()).content(home.key())
    home.release(Declared(names=(name,), content=content, remedy=remedy))


@dataclass(frozen=True, kw_only=True)
class TestRows:
    """Examples that the server holds, as a ledger has to know them, under the field of the settings that names them."""

    name: str
    field: str
    value: str
    rows: RowDigests


@dataclass(frozen=True)
class _IdentifiedTable:
    """A table's rows, all columns of them."""

    data: Table

    recognised = True

    @property
    def name(self) -> str:
        return str(self._path(self.data.file).resolve()) if self.data.identity is None else self.data.identity

    def division(self, unit: str) -> str:
        without = "" if self.data.holdout_clients is None else f", {self.data.holdout_clients!r} of them held out"
        return f"one {unit} for each {self.data.client or 'row'}{without}"

    def rows(self, key: bytes) -> RowDigests:
        return self._rows(self.data.file, key)

    def by_silo(self, rows: RowDigests) -> list[RowDigests]:
        return rows.by_owner()

    def test(self, key: bytes) -> TestRows | None:
        file = self.data.test_file
        if file is None:
            return None
        name = str(self._path(file).resolve())
        return TestRows(name=name, field="test_file", value=file, rows=self._rows(file, key))

    def _rows(self, file: str, key: bytes) -> RowDigests:
        columns = self.data.meaning()
        header = read_rows(self._path(self.data.file), columns.reading).header  # a test table has its columns
        cells = table_cells(self._path(file), columns.client, columns.reading)
        return digests_of_cells(cells, columns.resolved(header).features, columns.client, key=key)

    def _path(self, file: str) -> Path:
        return Path(self.data.folder or ".") / file


@dataclass(frozen=True)
class _PartiesElsewhere:
    """Parties with data of their own elsewhere: the name of the federation alone identifies them, whichever join or
    leave. Each party's ledger knows its disclosures.
    """

    data: Parties

    recognised = False

    @property
    def name(self) -> str:
        return f"the parties of {self.data.federation}"

    def division(self, unit: str) -> str:
        return f"one {unit} for each party"

    def rows(self, key: bytes) -> RowDigests:
        return _named([self.name], key)

    def by_silo(self, rows: RowDigests) -> list[RowDigests]:
        return _named([f"{self.name}: {party}" for party in enrolled(self.data)], Home.of_user().key()).by_owner()

    def test(self, key: bytes) -> TestRows | None:
        file = self.data.test_file
        if file is None:
            return None
        path, columns = Path(self.data.folder or ".") / file, self.data.meaning().resolved(())
        rows = digests_of_cells(table_cells(path, "", columns.reading), columns.features, "", key=key)
        return TestRows(name=str(path.resolve()), field="test_file", value=file, rows=rows)


@dataclass(frozen=True)
class _PartitionedExamples:
    """Examples before they are divided."""

    data: DigitsData | MnistData
    config: Config

    @property
    def name(self) -> str:
        if self.data.identity is not None:
            return self.data.identity
        return self.data.name if isinstance(self.data, DigitsData) else str(mnist_folder(self.data.folder).resolve())

    @property
    def recognised(self) -> bool:
        return not (self.data.public and isinstance(self.data, DigitsData))  # the digits come with this package

    def division(self, unit: str) -> str:
        data = self.data
        given = {name: getattr(data, name) for name in ("per_client", "alpha", "sigma", "validation")}
        numbers = "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)
        return f"{data.partition} over {data.clients} {unit}s, seed {data.seed}{numbers}"

    def rows(self, key: bytes) -> RowDigests:
        return digests_of_examples(whole_split(self.data).train, key=key)

    def by_silo(self, rows: RowDigests) -> list[RowDigests]:
        partition = federated_data(self.config).partition
        return rows.some(partition.indices, partition.owners).by_owner()

    def test(self, key: bytes) -> TestRows | None:
        test = whole_split(self.data).test
        if test is None or not self.recognised:
            return None
        rows = digests_of_examples(test, key=key)
        return TestRows(name=f"{self.name}, test", field="folder", value=self.name, rows=rows)


@dataclass(frozen=True)
class _Own:
    """Clients of a program, or of a function: their examples, or the rows of a data frame."""

    data: Clients

    recognised = True

    @property
    def name(self) -> str:
        return self.data.name or "arrays"

    def division(self, unit: str) -> str:
        owner = "owner" if self.data.cells is None or self.data.table is None else self.data.table.client
        return f"one {unit} for each {owner or 'row'}"

    def rows(self, key: bytes) -> RowDigests:
        data = self.data
        if data.cells is not None:
            return self._of_cells(data.cells, key)
        examples = data.examples if data.originals is None else data.originals
        return digests_of_examples(examples, key=key).some(data.partition.indices, data.partition.owners)

    def by_silo(self, rows: RowDigests) -> list[RowDigests]:
        each, cells, owners = rows.by_owner(), self.data.cells, self.data.owners
        if cells is None or owners is None or self.data.table is None or self.data.table.client is None:
            return each
        return [its for name, its in zip(np.unique(cells.owners), each, strict=True) if name in owners]

    def test(self, key: bytes) -> TestRows | None:
        data = self.data
        if data.test is None:
            return None
        of_cells = data.test_cells
        rows = digests_of_examples(data.test, key=key) if of_cells is None else self._of_cells(of_cells, key)
        return TestRows(name=f"{self.name}, test", field="test", value=f"{len(data.test)} examples", rows=rows)

    def _of_cells(self, cells: Cells, key: bytes) -> RowDigests:
        assert self.data.table is not None  # noqa: S101 - cells are those of a table
        return digests_of_cells(cells, self.data.table.features, self.data.table.client, key=key)


_Source = _IdentifiedTable | _PartiesElsewhere | _PartitionedExamples | _Own


def _source(config: Config, held: Clients | None) -> _Source:
    data = config.data
    if isinstance(data, Table):
        return _IdentifiedTable(data)
    if isinstance(data, Parties):
        return _PartiesElsewhere(data)
    if isinstance(data, PartitionedData):
        return _PartitionedExamples(data, config)
    return _Own(federated_data(config) if held is None else held)


def _named(names: list[str], key: bytes) -> RowDigests:
    """Digests of the names of parties whose rows are elsewhere."""
    rows = digests((name.encode() for name in names), key=key)
    return RowDigests(exact=rows, cells=rows, features=rows, owners=np.arange(len(rows)))


def _identity(source: _Source, config: Config) -> tuple[DataIdentity, RowDigests]:
    """The data of a source as clients', and its rows."""
    key = _key(source)
    rows = source.rows(key)
    content = rows.content(key) if source.recognised and not _public(source) else None
    declared = tuple(_declared(source, content))
    for each in declared:
        Home.of_user().check_public(each)
    identity = DataIdentity(
        name=source.name,
        public=_public(source),
        unit="client",
        division=source.division("client"),
        fingerprint=rows.fingerprint(key),
        released=config.privacy.released_before and not _public(source),
        content=content,
        declared=declared,
    )
    return identity, rows


def _declared(source: _Source, private: Content | None) -> Iterator[Declared]:
    """The data that a run on this source declares public."""
    if _public(source) and not source.recognised:
        return
    key = Home.of_user().key()
    if _public(source):
        names = (source.name, _of_silo(source.name, 1))
        yield Declared(names=names, content=source.rows(key).content(key), remedy=_NOT_PUBLIC)
    test = source.test(key)
    if test is None:
        return
    content = test.rows.content(key)
    if private is not None and private.holds(content):
        remedy = f"it has rows of people who train, under whatever names: {MEASURED}; or take all such rows out"
        raise ConfigError(field=test.field, value=test.value, remedy=remedy)
    yield Declared(names=(test.name,), content=content, remedy=f"what is measured on them is shown: {MEASURED}")


def _public(source: _Source) -> bool:
    return not isinstance(source, _PartiesElsewhere) and source.data.public


def _key(source: _Source) -> bytes:
    return PUBLIC_KEY if _public(source) else Home.of_user().key()


def _of_silo(name: str, place: int) -> str:
    return f"{name}, silo-{place}"
