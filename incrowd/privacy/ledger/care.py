"""Care for ledgers: to move one, to keep a copy of it, to put that back, to start afresh."""

import os
from contextlib import suppress
from pathlib import Path

from incrowd._private import check_ours, make_ours
from incrowd.errors import ConfigError, LedgerError, LedgerMismatch
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.chain import APPLICATION, BACKUP, Chain, copy
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.identity import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.ledger.place import LedgerPlace, beside
from incrowd.privacy.ledger.registry import Registered
from incrowd.privacy.ledger.state import sync
from incrowd.privacy.ledger.tally import Forgotten, Terms
from incrowd.privacy.ledger.witness import Mark, WitnessFile

_PART = ".part"


def move(home: Home, source: Path, target: Path, *, witness: Path | None = None) -> Registered:
    """Move a registered ledger, and the witness beside it; a witness elsewhere moves only to where it is named. A
    ledger that is moved to where it is stays there, and its witness moves alone.

    Guarantee: at any instruction one file, and only one, can be charged: the one that the registry names. Cut off
    anywhere, the same command goes on. A ledger that was moved by hand is taken up where it is now, if it has all
    entries that the registry saw.

    Edge cases: a ledger that is not registered, and another file in the way, are refused.
    """
    source, target = source.resolve(), target.resolve()
    with home.alone():
        known = home.registry.at(source) or home.registry.at(target)
        if known is None:
            raise ConfigError(field="FROM", value=str(source), remedy="no such ledger is registered: see `ledger list`")
        wanted = known.witness if witness is None else witness.resolve()
        if witness is None and known.witness == beside(known.path):
            wanted = beside(target)
        check_ours(target)
        check_ours(wanted)
        in_the_way = home.registry.at(target)
        if in_the_way is not None and in_the_way.id != known.id:
            raise ConfigError(field="TO", value=str(target), remedy="another ledger belongs there: name a new file")
        if known.path == target and source != target:  # moved already, and cut off before the rest was removed
            _remove(source, of=known.id)
            return known
        if source == target:
            _witness_to(home, known, wanted)
        elif source.exists():
            _carry(home, known, target, wanted)
        else:
            _adopt(home, known, target, wanted)
        registered = home.registry.at(target)
    Ledger.open(target).close()
    return registered or known


def backup(source: Path, target: Path) -> Mark:
    """A copy as it stands between two writes, marked as a backup: nothing can be charged to it.

    Edge cases: what is there already is not replaced (`ConfigError`).
    """
    if target.exists():
        raise ConfigError(field="TO", value=str(target), remedy="it is there already: name a new file")
    with Ledger.open(source) as ledger:
        _copied(Path(source).resolve(), target, application=BACKUP)
        return ledger.mark


def restore(source: Path, target: Path) -> Mark:
    """Put a backup back where its ledger was lost.

    Edge cases: one that lacks entries which the ledger's witness or the registry saw is refused (`LedgerRolledBack`),
    and nothing is put back; so is a target that is still there (`ConfigError`).
    """
    if target.exists():
        raise ConfigError(field="TO", value=str(target), remedy="it is still there: put it elsewhere if it is damaged")
    place = LedgerPlace.of(target)
    part = place.path.with_name(place.path.name + _PART)
    part.unlink(missing_ok=True)
    try:
        copy(source, part, application=APPLICATION)
        mark = _checked(place, part)
        part.replace(place.path)
        sync(place.path.parent)
    finally:
        part.unlink(missing_ok=True)
    Ledger.open(target).close()
    return mark


def fresh(
    home: Home, known: Registered, *, budget: Budget, relation: Relation | None = None, released: bool = False
) -> Registered:
    """Begin a new ledger for the data of one that is closed by this: what was spent is left out of account from now on.
    That the data were `released` without privacy stays said.

    Guarantee: the new ledger says for good, in its terms, what it forgets; the old one stays where it is and can be
    read, but not charged. Either all of this has happened, or nothing that counts.

    Edge cases: the neighbouring relation is the old ledger's unless it is given; where that one cannot be read, it has
    to be (`ConfigError`).
    """
    if known.retired:
        raise ConfigError(field="ledger", value=str(known.path), remedy="it was closed by a fresh start already")
    report = verify(known.path) if known.path.exists() else None
    forgotten: tuple[Forgotten, ...] = ()
    if report is not None and report["intact"]:
        with Ledger.read(known.path) as ledger:
            relation, forgotten = relation or ledger.relation, ledger.forgets
            released = released or ledger.data_identity.released
    if relation is None:
        raise ConfigError(field="relation", value=None, remedy=f"{known.path} cannot be read: state it")
    epsilon, delta = (None, None) if report is None else (report["epsilon"], report["delta"])
    its = Forgotten(ledger=known.id, entries=known.mark.entries, epsilon=epsilon, delta=delta)
    name = known.names[0]
    content, unit = (*known.fingerprints, None)[0], known.unit or None
    identity = DataIdentity(name=name, fingerprint=content, unit=unit, released=released)
    with home.alone():
        path = home.free_place(identity)
        make_ours(path.parent)
        forgets = (*forgotten, its)
        begun = Ledger.open(path, budget=budget, relation=relation, data_identity=identity, forgets=forgets)
        with begun as ledger:
            new = Registered(
                id=ledger.id,
                unit=known.unit,
                path=path,
                witness=beside(path),
                mark=ledger.mark,
            )
        home.registry.replace(known, new)
    return home.registry.by_id(new.id) or new


def _copied(source: Path, target: Path, *, application: int) -> None:
    """The copy is there in full, or not at all."""
    part = target.with_name(f"{target.name}{_PART}.{os.getpid()}")
    part.unlink(missing_ok=True)
    try:
        copy(source, part, application=application)
        part.replace(target)
        sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def _carry(home: Home, known: Registered, target: Path, witness: Path) -> None:
    """Copy, have the registry name the copy, remove what was copied."""
    if target.exists() and _id_of(target) != known.id:
        raise ConfigError(field="TO", value=str(target), remedy="there is another file: name a new one")
    with Ledger.open(known.path) as ledger, ledger.held() as mark:
        _copied(known.path, target, application=APPLICATION)
        WitnessFile(witness).write(mark)
        home.registry.mark(known.id, mark)
        home.registry.relocate(known.id, path=target, witness=witness)
        _remove(known.path, of=known.id)
        if known.witness != witness:
            known.witness.unlink(missing_ok=True)


def _adopt(home: Home, known: Registered, target: Path, witness: Path) -> None:
    """The ledger was moved by hand: it is this one, if nothing is missing from it."""
    if not target.exists():
        raise ConfigError(field="FROM", value=str(known.path), remedy=f"it is not there, and neither is {target}")
    if _id_of(target) != known.id:
        raise LedgerMismatch(f"{target} is not the ledger that was at {known.path}: name the right one")
    place = LedgerPlace(path=target, witness=WitnessFile(witness), registry=home.registry, known=known)
    WitnessFile(witness).write(_checked(place, target))
    home.registry.relocate(known.id, path=target, witness=witness)


def _witness_to(home: Home, known: Registered, witness: Path) -> None:
    with Ledger.open(known.path) as ledger, ledger.held() as mark:
        WitnessFile(witness).write(mark)
        home.registry.relocate(known.id, path=known.path, witness=witness)
        if known.witness != witness:
            known.witness.unlink(missing_ok=True)


def _checked(place: LedgerPlace, file: Path) -> Mark:
    """How far a file has come, which lacks nothing that anyone saw of the ledger of this place."""
    chain = Chain.open(file, mode="rw", busy_timeout_s=30.0)
    try:
        with Ledger(chain, place.all_witnesses()).held() as mark:
            return mark
    finally:
        chain.close()


def _remove(path: Path, *, of: str) -> None:
    """Remove a ledger's file that is not it any more."""
    if path.exists() and _id_of(path) == of:
        path.unlink()
        sync(path.parent)


def _id_of(path: Path) -> str | None:
    """The id in the first entry of what may be a ledger."""
    with suppress(LedgerError, KeyError, TypeError, ValueError):
        chain = Chain.open(path, mode="ro", busy_timeout_s=30.0)
        try:
            with chain.transaction(write=False):
                return Terms.from_json(next(chain.entries(start=0, previous="")).content()).id
        finally:
            chain.close()
    return None
