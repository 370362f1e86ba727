"""The ledgers of a run, which lie outside its folder, and the data that they know, by name and keyed fingerprint."""

import secrets
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from incrowd import _files
from incrowd.data.clients import MEASURED, Clients
from incrowd.data.examples import Examples
from incrowd.data.fingerprints import Cells, RowDigests, digests_of_cells, digests_of_examples, table_cells
from incrowd.errors import ConfigError, DataError, LedgerMismatch, LedgerRolledBack
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import PUBLIC_KEY, Content, DataIdentity, Declared, digests, same
from incrowd.privacy.ledger.home import Home, is_begun
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.registry import Registered
from incrowd.privacy.plan.plan import SAMPLING
from incrowd.privacy.plan.sampling import Cyclic, Poisson
from incrowd.runs.config import Config, parse
from incrowd.runs.data_config import DigitsData, MnistData, Parties, PartitionedData, Table
from incrowd.runs.sources import enrolled, federated_data, mnist_folder, section, whole_split

_NOT_PUBLIC = "leave data.public out"


def identities_of(config: Config, held: Clients | None = None) -> list[DataIdentity]:
    """The data that each ledger of a run is about; `held` are its clients, if they are loaded already.

    It is one, or one for each silo that adds noise, whose `whole` is the fingerprint of all silos' rows. One plan for
    the records of all silos has the fingerprint of each in `parts`.

    Guarantee: the fingerprint is over all columns of every row, before they are divided. It does not depend on the
    order of rows, on the file's name, on features or on the model. Public data and test examples have no ledger as
    private data in any unit (`LedgerMismatch`). They equal no training row (`ConfigError`), under any owners' names.
    """
    with section("data"):
        source = _source(config, held)
        common, rows = _identity(source, config)
        if not config.of_records:
            return [common]
        key, common = _key(source), replace(common, unit="record", division=source.division("silo"))
        if not config.privacy.by_silo:
            parts = () if common.public else tuple(its.fingerprint(key) for its in source.by_silo(rows))
            return [replace(common, parts=parts)]
        return [
            replace(
                common,
                name=f"{common.name}, silo-{place}",
                whole=common.fingerprint,
                fingerprint=its.fingerprint(key),
                content=None if common.content is None else its.content(key),
                declared=common.declared if place == 1 else (),
            )
            for place, its in enumerate(source.by_silo(rows), start=1)
        ]


def declare_public(name: str, examples: Examples, *, remedy: str) -> None:
    """Examples with exact measurements are public from now on: they are refused if they have a ledger as private data
    (`LedgerMismatch`), and can have none later.
    """
    home = Home.of_user()
    content = digests_of_examples(examples, key=home.key()).content(home.key())
    home.release(Declared(names=(name,), content=content, remedy=remedy))


class TestRows(NamedTuple):
    """Examples that the server holds, and the field of the settings that names them."""

    name: str
    field: str
    value: str
    rows: RowDigests


@dataclass(frozen=True)
class _PartiesElsewhere:
    """Parties who keep their data: the federation's name alone identifies them, and parties may join or leave."""

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
        return TestRows(str(path.resolve()), "test_file", file, rows)


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
        given = {name: getattr(data, name) for name in ("per_client", "alpha", "validation")}
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
        return TestRows(f"{self.name}, test", "folder", self.name, rows)


@dataclass(frozen=True)
class _Held:
    """Clients that are here: rows of a table, which settings may name, or of a frame; or examples of a program."""

    data: Clients
    stated: Table | None = None

    recognised = True

    @property
    def name(self) -> str:
        if self.stated is None:
            return self.data.name or "arrays"
        return str(self._path(self.stated.file).resolve()) if self.stated.identity is None else self.stated.identity

    def division(self, unit: str) -> str:
        table = None if self.cells is None else self.data.table
        share = None if self.stated is None else self.stated.holdout_clients
        without = "" if share is None else f", {share!r} of them held out"
        return f"one {unit} for each {'owner' if table is None else table.client or 'row'}{without}"

    def rows(self, key: bytes) -> RowDigests:
        data = self.data
        if self.cells is not None:
            return self._of_cells(self.cells, key)
        examples = data.examples if data.originals is None else data.originals
        return digests_of_examples(examples, key=key).some(data.partition.indices, data.partition.owners)

    def by_silo(self, rows: RowDigests) -> list[RowDigests]:
        each, cells, owners = rows.by_owner(), self.cells, self.data.owners
        if cells is None or owners is None or self.data.table is None or self.data.table.client is None:
            return each
        return [its for name, its in zip(np.unique(cells.owners), each, strict=True) if name in owners]

    def test(self, key: bytes) -> TestRows | None:
        data, file = self.data, None if self.stated is None else self.stated.test_file
        if file is not None:
            rows = self._of_cells(self._read(file), key)
            return TestRows(str(self._path(file).resolve()), "test_file", file, rows)
        if data.test is None or self.stated is not None:
            return None
        of_cells = data.test_cells
        rows = digests_of_examples(data.test, key=key) if of_cells is None else self._of_cells(of_cells, key)
        return TestRows(f"{self.name}, test", "test", f"{len(data.test)} examples", rows)

    @cached_property
    def cells(self) -> Cells | None:
        return self.data.cells if self.stated is None else self._read(self.stated.file)

    def _read(self, file: str) -> Cells:
        columns = self.data.table
        assert columns is not None  # noqa: S101 - settings name a table
        return table_cells(self._path(file), columns.client, columns.reading)

    def _path(self, file: str) -> Path:
        return Path((self.stated and self.stated.folder) or ".") / file

    def _of_cells(self, cells: Cells, key: bytes) -> RowDigests:
        assert self.data.table is not None  # noqa: S101 - cells are those of a table
        return digests_of_cells(cells, self.data.table.features, self.data.table.client, key=key)


_Source = _PartiesElsewhere | _PartitionedExamples | _Held


def _source(config: Config, held: Clients | None) -> _Source:
    data = config.data
    if isinstance(data, Parties):
        return _PartiesElsewhere(data)
    if isinstance(data, PartitionedData):
        return _PartitionedExamples(data, config)
    return _Held(federated_data(config) if held is None else held, data if isinstance(data, Table) else None)


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
        names = (source.name, f"{source.name}, silo-1")
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


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """Which ledger a run is charged to, under which label, and for which data.

    `path` is where the ledger was when the run began, or None for one in the run's folder, as public data have it.

    Guarantee: it opens the ledger with which the run began, wherever that was moved to with `incrowd ledger move`, and
    no other.
    """

    identity: DataIdentity
    id: str
    label: str
    path: Path | None = None
    witness: Path | None = None

    @classmethod
    def find(
        cls,
        identity: DataIdentity,
        *,
        own: Path,
        budget: Budget,
        relation: Relation,
        path: Path | None = None,
        witness: Path | None = None,
    ) -> "RunLedger":
        """The ledger of the data, begun if they have none, and a new label in it. Public data have their `own`, unless
        a path is given. Data that the run declares public are remembered as public.
        """
        label, home = secrets.token_hex(8), Home.of_user()
        for name, place in (("ledger", path), ("witness", witness)):
            if place is not None and place.is_dir():
                raise ConfigError(field=f"privacy.{name}", value=str(place), remedy="it is a folder: name a file")
        known = None
        if not identity.public:
            known = home.ledger_of(identity, budget=budget, relation=relation, path=path, witness=witness)
        for declared in identity.declared:
            home.release(declared)
        if known is not None:
            return cls(identity=identity, id=known.id, label=label, path=known.path)
        where = own if path is None else path.resolve()
        _files.folder(where.parent)
        new = None if is_begun(where) else budget
        with Ledger.open(where, budget=new, relation=relation, data_identity=identity, witness=witness) as ledger:
            if ledger.budget.delta != budget.delta:
                raise LedgerMismatch(f"{where} has delta = {ledger.budget.delta:g}: give that as privacy.delta")
            place = None if path is None else where
            return cls(identity=identity, id=ledger.id, label=label, path=place, witness=witness)

    def open(self, own: Path, *, budget: Budget | None = None) -> Ledger:
        """Open it, for writing; `own` is its place in the run's folder, where it has this budget."""
        path, known = self.path or own, Home.of_user().by_id(self.id)
        if known is not None:
            ledger = Ledger.open(known.path)
        else:
            ledger = Ledger.open(path, witness=self.witness, budget=budget if self.path is None else None)
        if ledger.id != self.id:
            ledger.close()
            raise LedgerRolledBack(f"{path} is not the ledger that this run was begun with: put the right one back")
        return ledger

    def part(self, number: int) -> "RunLedger":
        """The same ledger, under a label for one part of the work."""
        return replace(self, label=f"{self.label}-{number:04d}")

    def check_same(self, identity: DataIdentity) -> None:
        """The data are those with which the run began (`DataError`); under another key, names are compared instead of
        content, with a warning.
        """
        content, its = same(self.identity.fingerprint, identity.fingerprint), self.identity
        if content is False or replace(identity, name=its.name, fingerprint=its.fingerprint, whole=its.whole) != its:
            raise DataError(
                f"the data are not those that this run began with ({its.name}; {its.division}): put them back as they "
                "were; for changed data begin a new run"
            )
        if content is None:
            if its.name != identity.name:
                raise DataError(f"whether {identity.name!r} are the data of this run, {its.name!r}, cannot be told")
            warnings.warn(f"the key of the state folder is new: {its.name!r} are known by name alone", stacklevel=2)

    def to_json(self) -> dict[str, object]:
        """Plain JSON data."""
        places = {name: place and str(place) for name, place in (("path", self.path), ("witness", self.witness))}
        return {**vars(self), "identity": self.identity.to_json(), **places}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunLedger":
        """The ledger that `to_json` wrote."""
        path, witness = (place and Path(place) for place in (content["path"], content["witness"]))
        identity = DataIdentity(**content["identity"])
        return cls(identity=identity, id=content["id"], label=content["label"], path=path, witness=witness)


def begin_ledgers(
    tables: Mapping[str, Any], *, budget: Budget, path: Path | None, witness: Path | None
) -> list[Registered]:
    """The ledger of the data that settings name, begun with this budget; for silos, of each silo."""
    identities, relation = _of(tables)
    if len(identities) > 1 and path is not None:
        raise ConfigError(field="FILE", value=str(path), remedy="there are several silos: leave it out")
    home = Home.of_user()
    for identity, known in ((each, known) for each in identities for known in home.found(each)):
        if known is not None:
            raise ConfigError(field="data", value=identity.name, remedy=f"their ledger is {known.path} already")
    return [home.ledger_of(each, budget=budget, relation=relation, path=path, witness=witness) for each in identities]


def include_data(tables: Mapping[str, Any]) -> list[Registered]:
    """Let the ledgers of these data's names go on for the content that the data have now."""
    home, ledgers = Home.of_user(), []
    for identity in _of(tables)[0]:
        _, known = home.found(identity)
        if known is None:
            remedy = "no ledger is known by this name: state the name that its data had before as data.identity"
            raise ConfigError(field="data.identity", value=identity.name, remedy=remedy)
        home.include(known, identity)
        ledgers.append(known)
    return ledgers


def _of(tables: Mapping[str, Any]) -> tuple[list[DataIdentity], Relation]:
    """The private data that settings name, and the neighbouring relation of their ledgers."""
    config = parse({name: section for name, section in tables.items() if name != "recipe"})
    identities, wanted = identities_of(config), config.privacy
    if identities[0].public:
        remedy = "public data have no budget to keep: their runs have a ledger each, in their folders"
        raise ConfigError(field="data.public", value=True, remedy=remedy)
    if config.of_records:
        return identities, Poisson.relation
    if wanted.noise_by == "party":
        return identities, Relation.REPLACE_ONE
    return identities, Cyclic.relation if wanted.noise == "correlated" else SAMPLING[wanted.sampling].relation
