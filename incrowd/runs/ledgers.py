"""The ledgers of a run: outside its folder, one for all runs on the same data, or one for each silo."""

import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd.errors import ConfigError, DataError, LedgerMismatch, LedgerRolledBack
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.home import Home, is_begun
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.registry import Registered
from incrowd.privacy.ledger.tally import DataIdentity, same
from incrowd.privacy.plan.plan import SAMPLING
from incrowd.privacy.plan.sampling import Cyclic, Poisson
from incrowd.runs.config import Config
from incrowd.runs.folder import LEDGER, SILOS
from incrowd.runs.identity import identities_of
from incrowd.runs.settings import parse


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """Which ledger a run is charged to, under which label, and for which data. It is part of the run's settings.

    `path` is where the ledger was when the run began, or None for one in the run's own folder, as public data have it.
    `search` is the label of the private search that the run is an attempt of, and `planned_by_search` says that its
    rounds were reserved together with those of other runs.

    Guarantee: it opens the ledger with which the run began, wherever that was moved to with `incrowd ledger move`, and
    no other.
    """

    identity: DataIdentity
    id: str
    label: str
    path: Path | None = None
    witness: Path | None = None
    search: str | None = None
    planned_by_search: bool = False

    @classmethod
    def find(
        cls,
        identity: DataIdentity,
        *,
        own: Path,
        budget: Budget,
        relation: Relation,
        path: Path | str | None = None,
        witness: Path | str | None = None,
    ) -> "RunLedger":
        """The ledger of the data, begun if they have none, and a new label there. Public data have their `own`, unless
        a path is given. Data that the run declares public are remembered as that.
        """
        label, home = secrets.token_hex(8), Home.of_user()
        path, witness = (None if place is None else Path(place) for place in (path, witness))
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
        begun = is_begun(where)
        with Ledger.open(
            where, budget=None if begun else budget, relation=relation, data_identity=identity, witness=witness
        ) as ledger:
            if ledger.budget.delta != budget.delta:
                raise LedgerMismatch(f"{where} has delta = {ledger.budget.delta:g}: give that as privacy.delta")
            place = None if path is None else where
            return cls(identity=identity, id=ledger.id, label=label, path=place, witness=witness)

    def open(self, own: Path, *, budget: Budget | None = None) -> Ledger:
        """Open it, for writing; `own` is where it is if it is in the run's folder, and then the budget is its own."""
        path = own if self.path is None else self.path
        known = Home.of_user().by_id(self.id)
        if known is not None:
            ledger = Ledger.open(known.path)
        else:
            ledger = Ledger.open(path, witness=self.witness, budget=budget if self.path is None else None)
        if ledger.id != self.id:
            ledger.close()
            raise LedgerRolledBack(f"{path} is not the ledger that this run was begun with: put the right one back")
        return ledger

    @property
    def in_search(self) -> bool:
        """Whether a search decides what is reserved."""
        return self.planned_by_search or self.search is not None

    def part(self, number: int) -> "RunLedger":
        """The same ledger, under a label for one part of the work."""
        return replace(self, label=f"{self.label}-{number:04d}", planned_by_search=True)

    def check_same(self, identity: DataIdentity) -> None:
        """The data are those with which the run began (`DataError`).

        Edge cases: under another key, content cannot be compared: names are, and a warning says so.
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
        places = {name: None if place is None else str(place) for name, place in self._places.items()}
        return {**vars(self), "identity": self.identity.to_json(), **places}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunLedger":
        """The ledger that `to_json` wrote."""
        places = {name: None if content[name] is None else Path(content[name]) for name in ("path", "witness")}
        return cls(**{**content, "identity": DataIdentity(**content["identity"]), **places})

    @property
    def _places(self) -> dict[str, Path | None]:
        return {"path": self.path, "witness": self.witness}


def own_place(folder: Path, silo: str) -> Path:
    """The place of a silo's ledger in the run's folder."""
    return folder / SILOS / silo / LEDGER


def begin_ledgers(
    tables: Mapping[str, Any], *, budget: Budget, path: Path | None, witness: Path | None
) -> list[Registered]:
    """The ledger of the data that settings name, begun with this budget; for silos, of each silo.

    Edge cases: data that have one already are refused, and so are public data.
    """
    identities, relation = _of(tables)
    if len(identities) > 1 and path is not None:
        raise ConfigError(field="FILE", value=str(path), remedy="there are several silos: leave it out")
    home = Home.of_user()
    for identity in identities:
        for known in home.found(identity):
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
    config = parse({name: section for name, section in tables.items() if name != "recipe"})
    identities = identities_of(config)
    if identities[0].public:
        remedy = "public data have no budget to keep: their runs have a ledger each, in their folders"
        raise ConfigError(field="data.public", value=True, remedy=remedy)
    return identities, relation_of(config)


def relation_of(config: Config) -> Relation:
    """The neighbouring relation of a run of these settings."""
    wanted = config.privacy
    if config.of_records:
        return Poisson.relation
    if wanted.noise_by == "party":
        return Relation.REPLACE_ONE
    return Cyclic.relation if wanted.noise == "correlated" else SAMPLING[wanted.sampling].relation
