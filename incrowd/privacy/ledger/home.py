"""One ledger for one data set: found by the data's name and content, begun, moved, restored and replaced."""

import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from incrowd import _files
from incrowd._private import check_ours, make_ours
from incrowd.errors import AccountingError, ConfigError, LedgerError, LedgerMismatch, LedgerMisplaced
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import Content, DataIdentity, Declared, same
from incrowd.privacy.ledger.chain import APPLICATION, BACKUP, Chain, Mark, copy
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.registry import Guard, Registered, Registry, beside, write_witness
from incrowd.privacy.ledger.tally import Forgotten, Tally


class Home(Registry):
    """A user's state folder: the key for fingerprints, the registry, and the ledgers without another place.

    Guarantee: known data have the ledger that they had before: under another name, in another order of rows, with other
    labels, whatever was removed but this folder. Data that were declared public are remembered, and are private later
    only if the settings say so. If many processes ask at once for new data, one begins the ledger and all get it; a
    crash at any instruction leaves a state that the next one can use. If the key is gone, data are known by name alone,
    with a warning, and new names are refused. A lost registry takes in the ledgers in this folder, with a warning.
    """

    def ledger_of(
        self,
        identity: DataIdentity,
        *,
        budget: Budget,
        relation: Relation,
        path: Path | None = None,
        witness: Path | None = None,
    ) -> Registered:
        """The ledger of some data, begun with this budget (at a given path) if there is none yet."""
        path, witness = (None if each is None else each.resolve() for each in (path, witness))
        with self.alone():
            self._check_undivided(identity)
            self._check_apart(identity)
            known = self._known(identity, path)
            if known is None:
                self._check_key(identity)
                self._check_new(identity)
                self._check_released(identity, said=identity.released)
                known = self._begun(identity, budget, relation, path, witness)
            elif path not in (None, known.path):
                remedy = f"name that one, or leave it out; `incrowd ledger move {known.path} {path}` moves it"
                its = f"the ledger of these data ({_listed(known.names)})"
                raise LedgerMismatch(f"{its} is {known.path}, not {path}: {remedy}")
            with Ledger.open(known.path, witness=witness) as ledger:
                _check_fits(known, ledger, identity, budget, relation)
                self._check_released(identity, said=ledger.data_identity.released, path=known.path)
            self.remember(known, identity)
        return known

    def include(self, known: Registered, identity: DataIdentity) -> None:
        """These data are a later version of a ledger's data: it goes on for both, unless they have another ledger."""
        with self.alone():
            for other in self.found(identity):
                if other is not None and other.id != known.id:
                    raise LedgerMismatch(f"these data have a ledger already, {other.path}: theirs cannot be another")
            with Ledger.read(known.path) as ledger:
                self._check_released(identity, said=ledger.data_identity.released, path=known.path)
            self.remember(known, identity)

    def check_public(self, declared: Declared) -> None:
        """Data that are declared public have no ledger as private data, for any unit, not even in part."""
        if self.path.exists():
            self.complete()
        known, names, content = self.ledgers(), set(declared.names), declared.content
        its = [each for each in known if names & {*each.names} or content.whole in each.fingerprints + each.wholes]
        for each in its or self._like(content):
            private = f"are declared public, and have a ledger as private data, {each.path}"
            raise LedgerMismatch(f"the data {declared.names[0]!r} {private}: {declared.remedy}")

    def release(self, declared: Declared) -> None:
        """Remember that these data are released without privacy; see `check_public`."""
        with self.alone():
            self.check_public(declared)
            self.note_released(declared.names[0], declared.content)

    def found(self, identity: DataIdentity) -> tuple[Registered | None, Registered | None]:
        """The ledger of this content, and the one of this name; looking makes nothing."""
        contents = {identity.fingerprint, None if identity.content is None else identity.content.people}
        its = [known for known in self.ledgers() if known.unit == (identity.unit or "")]
        alike = (known for known in its if contents & {*known.fingerprints})
        of_content = max(alike, key=lambda known: identity.fingerprint in known.fingerprints, default=None)
        return of_content, next((known for known in its if identity.name in known.names), None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from finding, beginning and moving ledgers; the registry exists meanwhile."""
        with self.locked():
            lost = not self.path.exists()
            self.complete()
            self._update_registry(lost=lost)
            yield

    def place_of(self, identity: DataIdentity, *, number: int = 1) -> Path:
        """The place of the ledger of some data unless another is named; a fresh start takes the next free number."""
        text = identity.fingerprint or ":" + hashlib.sha256(identity.name.encode()).hexdigest()
        readable = re.sub(r"[^a-z0-9]+", "-", Path(identity.name).name.lower()).strip("-")[:40]
        folder = f"{readable}-{text.partition(':')[2][:12]}{f'-{number}' if number > 1 else ''}"
        return self.folder / "ledgers" / folder / f"{identity.unit or 'data'}.sqlite"

    def _known(self, identity: DataIdentity, path: Path | None) -> Registered | None:
        """The ledger that these data have already."""
        of_content, named = self.found(identity)
        if of_content is not None and named is not None and of_content.id != named.id:
            whose = f"that of {_listed(of_content.names)}, whose ledger is {of_content.path}"
            name = f"their name {identity.name!r} belongs to {named.path}"
            raise LedgerMismatch(f"the content of these data is {whose}, and {name}: state the right data.identity")
        if of_content is None and named is not None:
            _check_unchanged(named, identity)
        at = None if path is None or of_content is not None or named is not None else self.at(path)
        if at is not None and (at.fingerprints or at.unit not in ("", identity.unit)):
            raise LedgerMismatch(
                f"{path} is the ledger of other data, {_listed(at.names)}: leave it out or name another. If these are "
                "a later version of those, `incrowd ledger include` lets it go on for both"
            )
        return of_content or named or at  # the last was begun by name alone, for data that come now

    def _check_undivided(self, identity: DataIdentity) -> None:
        """The data that these are a part of were not divided in another way."""
        for part in self.ledgers() if identity.whole is not None else ():
            its = part.unit == (identity.unit or "") and identity.whole in part.wholes
            if its and part.division not in (None, identity.division):
                raise LedgerMismatch(
                    f"these data were divided among silos before ({part.division}; one ledger is {part.path}); divided "
                    f"otherwise ({identity.division}) the same records would be paid for twice: divide them as before"
                )

    def _check_apart(self, identity: DataIdentity) -> None:
        """No ledger holds charges of these data by silo, or of all silos together: the same records would have two."""
        for known in self.ledgers() if identity.fingerprint is not None else ():
            if known.unit != (identity.unit or "") or identity.fingerprint in known.fingerprints:
                continue
            shared = {identity.whole, *identity.parts} & {*known.fingerprints}
            if shared or identity.fingerprint in known.wholes:
                raise LedgerMismatch(
                    f"records of the data {identity.name!r} are charged to {known.path} ({_listed(known.names)}), by "
                    "silo or for all silos together: divide and charge them as before"
                )

    def _check_key(self, identity: DataIdentity) -> None:
        """The present key recognises all known data, so that data that seem to be new are new."""
        for known in self.ledgers() if identity.fingerprint is not None else ():
            if known.fingerprints and all(same(its, identity.fingerprint) is None for its in known.fingerprints):
                raise LedgerMismatch(
                    f"the data {identity.name!r} may be those of {_listed(known.names)}, whose key is gone: put the "
                    "key back, or let the new one recognise those with `incrowd ledger include`"
                )

    def _check_new(self, identity: DataIdentity) -> None:
        """Data that seem to be new are not those of another ledger, in part or under other names."""
        for known in () if identity.content is None else self._like(identity.content):
            part_of_the_same = identity.whole is not None and identity.whole in known.wholes
            if known.unit == identity.unit and not part_of_the_same:
                raise LedgerMismatch(
                    f"rows of the data {identity.name!r} are those of {_listed(known.names)}, whose ledger is "
                    f"{known.path}: give them that name and let the ledger go on for both with `incrowd ledger include`"
                )

    def _check_released(self, identity: DataIdentity, *, said: bool, path: Path | None = None) -> None:
        """The terms of a ledger, and so every statement, say that its data were released without privacy."""
        content = None if said else identity.content
        names = []
        if content is not None:
            samples = self.samples()
            for whole, name in self.released().items():  # some are partly these, or of another key
                if same(whole, content.whole) is not False or content.like(samples.get(whole, [])):
                    names.append(name)
        if said or not (names or identity.released):
            return
        remedy = "no run can undo that. To go on, state privacy.released_before = true, which every statement repeats"
        if path is not None:
            remedy = f"their ledger {path} does not say so: begin another with `incrowd ledger fresh --released`"
        as_public = f", as {_listed(names)}, declared public" if names else ""
        rows = f"rows of the data {identity.name!r} were released without privacy before{as_public}"
        raise LedgerMismatch(f"{rows}: {remedy}")

    def _like(self, content: Content) -> list[Registered]:
        """The ledgers of data whose rows are partly these."""
        known = self.ledgers()
        samples = self.samples() if known else {}
        return [each for each in known if content.like(samples.get(each.id, []))]

    def _begun(
        self, identity: DataIdentity, budget: Budget, relation: Relation, path: Path | None, witness: Path | None
    ) -> Registered:
        place = self.place_of(identity) if path is None else path
        for each in (place, witness or place):
            make_ours(each.parent)
            check_ours(each)
        if is_begun(place):
            ledger = Ledger.open(place, witness=witness)
        else:
            ledger = Ledger.open(place, budget=budget, relation=relation, data_identity=identity, witness=witness)
        with ledger:
            _check_same(place, ledger.data_identity, identity)
            self.add(ledger.id, ledger.data_identity, ledger.mark, place, witness or beside(place))
        return next(known for known in self.ledgers() if known.id == ledger.id)

    def _update_registry(self, *, lost: bool) -> None:
        """Register the ledgers in this folder that a lost or older registry, or a killed process, left out."""
        known, taken = {its.path for its in self.ledgers()}, []
        for path in sorted((self.folder / "ledgers").glob("*/*.sqlite")):
            if path not in known and is_begun(path):
                with suppress(LedgerMisplaced), Ledger.open(path) as ledger:  # a copy, or a rest of a moved ledger
                    self.add(ledger.id, ledger.data_identity, ledger.mark, path, beside(path))
                    taken += [str(path)] * (lost or ledger.mark.entries > 1)  # nothing was spent with one entry
        if taken:
            how = "was gone, and is made anew from" if lost else "did not know"
            missing = "it may miss others, or that one of these was rolled back: name those with --ledger"
            warnings.warn(f"{self.path} {how} {', '.join(taken)}: {missing}", stacklevel=2)


def is_begun(path: Path) -> bool:
    """Whether a ledger is at a path, and not only the beginning of one that was cut off."""
    if not path.exists():
        return False
    with closing(Chain(path)) as chain, chain.transaction(write=True):
        return not chain.is_new()


def move(home: Home, source: Path, target: Path, *, witness: Path | None = None) -> Registered:
    """Move a registered ledger, and the witness beside it or to a named place; or the witness alone.

    Guarantee: at any instruction exactly one file can be charged: the registered one. After a crash the same command
    goes on. A ledger that was moved by hand is taken up where it is now, if it has all entries that were seen.
    """
    source, target = source.resolve(), target.resolve()
    with home.alone():
        known, in_the_way = home.at(source) or home.at(target), home.at(target)
        if known is None:
            raise ConfigError(field="FROM", value=str(source), remedy="no such ledger is registered: see `ledger list`")
        wanted = known.witness if witness is None else witness.resolve()
        if witness is None and known.witness == beside(known.path):
            wanted = beside(target)
        check_ours(target)
        check_ours(wanted)
        if in_the_way is not None and in_the_way.id != known.id:
            raise ConfigError(field="TO", value=str(target), remedy="another ledger belongs there: name a new file")
        if known.path == target and source != target:  # moved already, and cut off before the rest was removed
            if source.exists() and _is(source, known.id):
                _files.remove(source)
        elif source.exists():
            _carry(home, known, target, wanted)
        else:
            _adopt(home, known, target, wanted)
    Ledger.open(target).close()
    return home.by_id(known.id) or known


def backup(source: Path, target: Path) -> Mark:
    """A copy as it stands between two writes, marked as a backup, which is never charged."""
    if target.exists():
        raise ConfigError(field="TO", value=str(target), remedy="it is there already: name a new file")
    with Ledger.open(source) as ledger, ledger.held() as mark:
        copy(source.resolve(), target, application=BACKUP)
        return mark


def restore(source: Path, target: Path) -> Mark:
    """Put a backup back in the place of a lost ledger, unless it lacks entries that were seen (`LedgerRolledBack`)."""
    if target.exists():
        raise ConfigError(field="TO", value=str(target), remedy="it is still there: put it elsewhere if it is damaged")
    guard = Guard(target)
    part = guard.path.with_name(f"{guard.path.name}.restored")
    try:
        copy(source, part, application=APPLICATION)
        tally = _tally(part)
        guard.check(tally.hashes, moved=True)
        guard.write(tally.mark)
        part.replace(guard.path)
        _files.sync(guard.path.parent)
    finally:
        part.unlink(missing_ok=True)
    Ledger.open(target).close()
    return tally.mark


def fresh(
    home: Home, known: Registered, *, budget: Budget, relation: Relation | None = None, released: bool = False
) -> Registered:
    """Begin a new ledger for the data of one that is closed by this: earlier charges do not count from now on.

    Guarantee: the terms of the new ledger say for good which ledgers it forgets, and that its data were `released`
    without privacy. The old one stays where it is, for reading. A crash leaves all of this done, or nothing.
    """
    if known.retired:
        raise ConfigError(field="ledger", value=str(known.path), remedy="it was closed by a fresh start already")
    its = Forgotten(ledger=known.id, entries=known.mark.entries, epsilon=None, delta=None)
    forgotten: tuple[Forgotten, ...] = ()
    with suppress(AccountingError, LedgerError), Ledger.read(known.path) as ledger:
        ledger.verify()
        its = replace(its, epsilon=ledger.spent().epsilon, delta=ledger.budget.delta)
        relation, forgotten = relation or ledger.relation, ledger.forgets
        released = released or ledger.data_identity.released
    if relation is None:
        raise ConfigError(field="relation", value=None, remedy=f"{known.path} cannot be read: state it")
    content, unit = (*known.fingerprints, None)[0], known.unit or None
    identity = DataIdentity(name=known.names[0], fingerprint=content, unit=unit, released=released)
    with home.alone():
        number = 1
        while (path := home.place_of(identity, number=number)).parent.exists():
            number += 1
        make_ours(path.parent)
        forgets = (*forgotten, its)
        begun = Ledger.open(path, budget=budget, relation=relation, data_identity=identity, forgets=forgets)
        with begun as ledger:
            home.add(ledger.id, identity, ledger.mark, path, beside(path), replaces=known.id)
    return next(each for each in home.ledgers() if each.id == ledger.id)


def _carry(home: Home, known: Registered, target: Path, witness: Path) -> None:
    """Copy the ledger, register the copy, and remove the source; or move the witness alone."""
    if target.exists() and not _is(target, known.id):
        raise ConfigError(field="TO", value=str(target), remedy="there is another file: name a new one")
    with Ledger.open(known.path) as ledger, ledger.held() as mark:
        if target != known.path:
            copy(known.path, target, application=APPLICATION)
        write_witness(witness, mark)
        home.update(known.id, mark, path=target, witness=witness)
        if target != known.path:
            _files.remove(known.path)
        if known.witness != witness:
            known.witness.unlink(missing_ok=True)


def _adopt(home: Home, known: Registered, target: Path, witness: Path) -> None:
    """Register the new place of a ledger that was moved by hand, if no entry is missing."""
    if not target.exists():
        raise ConfigError(field="FROM", value=str(known.path), remedy=f"it is not there, and neither is {target}")
    if not _is(target, known.id):
        raise LedgerMismatch(f"{target} is not the ledger that was at {known.path}: name the right one")
    guard = Guard(known.path)
    guard.files = (*guard.files, witness)
    tally = _tally(target)
    guard.check(tally.hashes, moved=True)
    write_witness(witness, tally.mark)
    home.update(known.id, tally.mark, path=target, witness=witness)


def _tally(file: Path) -> Tally:
    with closing(Chain(file)) as chain, chain.transaction(write=True):
        return Tally.of(chain)


def _is(file: Path, ledger: str) -> bool:
    """Whether a file is the ledger of this id."""
    with suppress(LedgerError):
        return _tally(file).terms.id == ledger
    return False


def _check_unchanged(known: Registered, identity: DataIdentity) -> None:
    """The content of the data of this name is the same as before, as far as can be told."""
    told = [same(known_content, identity.fingerprint) for known_content in known.fingerprints]
    if False in told:
        raise LedgerMismatch(
            f"the data {identity.name!r} are not those of their ledger {known.path}: their content has changed. If "
            "they are a later version, of some of the same people, let the ledger go on for both with `incrowd ledger "
            "include`; if no person is in both, state another data.identity; `incrowd ledger fresh` forgets what was "
            "spent, and notes that for good"
        )
    if told and identity.fingerprint is not None:
        keys = "the state folder has another key than before"
        warnings.warn(f"{keys}: the data {identity.name!r} are known by their name alone", stacklevel=2)


def _check_same(path: Path, its: DataIdentity, identity: DataIdentity) -> None:
    """An unregistered ledger at the place for these data is theirs."""
    content = same(its.fingerprint, identity.fingerprint)
    fits = content if content is not None else its.fingerprint is None or its.name == identity.name
    if not fits or its.public or its.unit not in (None, identity.unit):
        remedy = f"name another file; if these are the same under another key, state data.identity = {its.name!r}"
        raise LedgerMismatch(f"{path} is the ledger of other data, {its}: {remedy}")


def _check_fits(known: Registered, ledger: Ledger, identity: DataIdentity, budget: Budget, relation: Relation) -> None:
    """The ledger's prices and those of this run add up."""
    for name, its, given in (
        ("privacy.delta", ledger.budget.delta, budget.delta),
        ("the neighbouring relation, which follows from privacy.sampling,", ledger.relation.name, relation.name),
        ("what makes up one unit", known.division, identity.division),
    ):
        if its is not None and its != given:
            raise LedgerMismatch(
                f"{known.path} is the ledger of these data ({_listed(known.names)}), and {name} is {its!r} there and "
                f"{given!r} here, which do not add up: use its own, or forget it for good with `incrowd ledger fresh`"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
