"""One ledger for one data set: found by the data's name and content, begun where there is none yet."""

import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from incrowd._private import check_ours, make_ours
from incrowd.errors import LedgerMismatch, LedgerMisplaced
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import Content
from incrowd.privacy.ledger.chain import Chain
from incrowd.privacy.ledger.identity import DataIdentity, Declared, same
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.place import beside
from incrowd.privacy.ledger.registry import Registered, Registry
from incrowd.privacy.ledger.state import key_in, state_folder

LEDGERS = "ledgers"


@dataclass(frozen=True)
class Home:
    """A user's state folder: the key for fingerprints, the registry, and the ledgers that were given no other place.

    Guarantee: data that are known, by their name or by their content, have the ledger that they had before: under
    another name, in another order of rows, with other labels, and whatever was removed but this folder. Data that were
    declared public are remembered, too, and not private later unless that is said. Of any number of processes that
    ask at once for new data, one begins the ledger, and all get it; a crash at any instruction leaves what the next
    one can use.

    Edge cases: content that has changed under a known name, and whatever would make a ledger's sum meaningless (another
    delta, neighbouring relation, or way in which the data make up units), is a `LedgerMismatch` that names the
    commands that help; so are data that are divided among silos in another way than before, which would give each
    record a budget more. Where the key is gone, data are known by name alone, and a warning says so; data of a name
    that is not known are then refused, for they may be any of those. A registry that is gone is made anew from the
    ledgers in this folder, and one that is older than some of them is told of those, with a warning; others have to be
    named.
    """

    folder: Path

    @classmethod
    def of_user(cls) -> "Home":
        """The user's own (`state_folder`)."""
        return cls(state_folder())

    @cached_property
    def registry(self) -> Registry:
        """The table of all ledgers; it need not be there yet."""
        return Registry(self.folder)

    def key(self) -> bytes:
        """The key for fingerprints, made at its first use."""
        return key_in(self.folder)

    def ledger_of(
        self,
        identity: DataIdentity,
        *,
        budget: Budget,
        relation: Relation,
        path: Path | None = None,
        witness: Path | None = None,
    ) -> Registered:
        """The ledger of some data, begun with this budget if there is none yet.

        A known ledger keeps its own budget, of which only the delta must be this one. A path and a witness, if they are
        given, must be the ledger's; a new one is begun there, and one that is there already and fits is taken up.
        """
        path, witness = (None if each is None else each.resolve() for each in (path, witness))
        with self.alone():
            self._check_undivided(identity)
            known = self._known(identity, path)
            if known is None:
                self._check_key(identity)
                self._check_new(identity)
                self._check_released(identity, said=identity.released)
                known = self._begun(identity, budget, relation, path, witness)
            elif path not in (None, known.path):
                raise LedgerMismatch(
                    f"the ledger of these data ({_listed(known.names)}) is {known.path}, not {path}: name that one, or "
                    f"leave it out; `incrowd ledger move {known.path} {path}` moves it"
                )
            with Ledger.open(known.path, witness=witness) as ledger:
                _check_fits(known, ledger, identity, budget, relation)
                self._check_released(identity, said=ledger.data_identity.released, path=known.path)
            self.registry.remember(known, identity)
        return known

    def include(self, known: Registered, identity: DataIdentity) -> None:
        """These data are a later version of the ones that a ledger is about: it goes on for both.

        Edge cases: data that have another ledger already are refused.
        """
        with self.alone():
            for other in self.found(identity):
                if other is not None and other.id != known.id:
                    raise LedgerMismatch(f"these data have a ledger already, {other.path}: theirs cannot be another")
            with Ledger.read(known.path) as ledger:
                self._check_released(identity, said=ledger.data_identity.released, path=known.path)
            self.registry.remember(known, identity)

    def check_public(self, declared: Declared) -> None:
        """Data that are declared public are not known here as somebody's, whoever was protected, as a whole or in
        parts, under another name or with other labels: `LedgerMismatch`.
        """
        if not self.registry.path.exists():
            return
        self.registry.complete()
        content, name = declared.content, declared.names[0]
        known = [its for each in declared.names for its in self.registry.of_any_unit(each, content.whole)]
        for its in known or self._like(content):
            raise LedgerMismatch(
                f"the data {name!r} are declared public, and have a ledger as private data, {its.path}: "
                f"{declared.remedy}"
            )

    def release(self, declared: Declared) -> None:
        """Remember that these data are released without privacy; see `check_public`."""
        with self.alone():
            self.check_public(declared)
            self.registry.release(declared.names[0], declared.content)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from finding, beginning and moving ledgers; the registry is there meanwhile."""
        make_ours(self.folder)
        with self.registry.alone():
            if self.registry.path.exists():
                self.registry.complete()
                self._update_registry()
            else:
                self._restore_registry()
            yield

    def free_place(self, identity: DataIdentity) -> Path:
        """Where a ledger may be begun that is given no place: no ledger of the data was there before."""
        place, number = self._place(identity), 2
        while place.parent.exists():
            place = place.parent.with_name(f"{self._place(identity).parent.name}-{number}") / place.name
            number += 1
        return place

    def _place(self, identity: DataIdentity) -> Path:
        text = identity.fingerprint or ":" + hashlib.sha256(identity.name.encode()).hexdigest()
        readable = re.sub(r"[^a-z0-9]+", "-", Path(identity.name).name.lower()).strip("-")[:40]
        return self.folder / LEDGERS / f"{readable}-{text.partition(':')[2][:12]}" / f"{identity.unit or 'data'}.sqlite"

    def found(self, identity: DataIdentity) -> tuple[Registered | None, Registered | None]:
        """The ledger of this content, and the one of this name; looking makes nothing."""
        if not self.registry.path.exists():
            return None, None
        unit, content = identity.unit or "", identity.content
        of_content = self.registry.of_content(unit, identity.fingerprint)
        if of_content is None and content is not None:
            of_content = self.registry.of_content(unit, content.people)
        return of_content, self.registry.named(unit, identity.name)

    def _known(self, identity: DataIdentity, path: Path | None) -> Registered | None:
        """The ledger that these data have already."""
        of_content, named = self.found(identity)
        if of_content is not None and named is not None and of_content.id != named.id:
            raise LedgerMismatch(
                f"the content of these data is that of {_listed(of_content.names)}, whose ledger is {of_content.path}, "
                f"and their name {identity.name!r} belongs to {named.path}: state the right data.identity"
            )
        if of_content is None and named is not None:
            _check_unchanged(named, identity)
        known = of_content or named
        at = None if path is None else self.registry.at(path)
        if known is None and at is not None:
            if at.fingerprints or at.unit not in ("", identity.unit):
                raise LedgerMismatch(
                    f"{path} is the ledger of other data, {_listed(at.names)}: leave it out or name another. If these "
                    "are a later version of those, `incrowd ledger include` lets it go on for both"
                )
            return at  # begun by name alone, for data that come now
        return known

    def _check_undivided(self, identity: DataIdentity) -> None:
        """What these data are a part of was not divided in another way."""
        for part in self.registry.parts_of(identity.unit or "", identity.whole):
            if part.division not in (None, identity.division):
                raise LedgerMismatch(
                    f"these data were divided among silos before ({part.division}), each of which has a ledger, say "
                    f"{part.path}; divided otherwise ({identity.division}) the same records would be paid for twice: "
                    "divide them as before"
                )

    def _check_key(self, identity: DataIdentity) -> None:
        """Data that seem to be new can be told from all that are known."""
        for known in self.registry.ledgers() if identity.fingerprint is not None else ():
            if known.fingerprints and all(same(its, identity.fingerprint) is None for its in known.fingerprints):
                raise LedgerMismatch(
                    f"whether the data {identity.name!r} are those of {_listed(known.names)} cannot be told, because "
                    "the key that those were known by is gone: put the key back, or have those known by the new one "
                    "with `incrowd ledger include`"
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
        """That data were released without privacy is said in the terms of their ledger, and so in every statement."""
        names = [] if said else self._released_as(identity.content)
        if not names and (said or not identity.released):
            return
        remedy = (
            "no run can protect these people from that. To go on, state privacy.released_before = true, and every "
            "statement says so"
        )
        if path is not None:
            remedy = f"their ledger {path} does not say so: begin another with `incrowd ledger fresh --released`"
        as_public = f", as {_listed(tuple(names))}, declared public" if names else ""
        raise LedgerMismatch(
            f"rows of the data {identity.name!r} were released without privacy before{as_public}: {remedy}"
        )

    def _released_as(self, content: Content | None) -> list[str]:
        """The names of data that were released without privacy, and are partly these, or cannot be told from them."""
        if content is None:
            return []
        samples = self.registry.samples()
        return [
            name
            for fingerprint, name in self.registry.released()
            if same(fingerprint, content.whole) is not False or content.like(samples.get(fingerprint, []))
        ]

    def _like(self, content: Content) -> list[Registered]:
        """The ledgers of data whose rows are partly these."""
        samples = self.registry.samples()
        return [known for known in self.registry.ledgers() if content.like(samples.get(known.id, []))]

    def _begun(
        self, identity: DataIdentity, budget: Budget, relation: Relation, path: Path | None, witness: Path | None
    ) -> Registered:
        place = self._place(identity) if path is None else path
        for each in (place, witness or place):
            make_ours(each.parent)
            check_ours(each)
        if is_begun(place):
            with Ledger.open(place, witness=witness) as ledger:
                _check_same(place, ledger.data_identity, identity)
        else:
            Ledger.open(place, budget=budget, relation=relation, data_identity=identity, witness=witness).close()
        known = _row(place, witness)
        self.registry.add(known)
        return known

    def _update_registry(self) -> None:
        """Take in the ledgers in this folder that the registry does not know: it was put back from an older copy, or
        a process was killed before it could say what it had begun.
        """
        its = {known.path for known in self.registry.ledgers()}
        for path in sorted((self.folder / LEDGERS).glob("*/*.sqlite")):
            if path in its or not is_begun(path):
                continue
            with suppress(LedgerMisplaced):  # it is a copy, or what was left of one that was moved
                self.registry.add(row := _row(path, None))
                if row.mark.entries > 1:  # or else it was only begun, and there was nothing to know
                    warnings.warn(f"{self.registry.path} did not know {path}, and is told of it", stacklevel=2)

    def _restore_registry(self) -> None:
        """Begin the registry, with all ledgers that are in this folder: there are some if it was lost."""
        orphans = [path for path in sorted((self.folder / LEDGERS).glob("*/*.sqlite")) if is_begun(path)]
        self.registry.make(_row(path, None) for path in orphans)
        if orphans:
            warnings.warn(
                f"{self.registry.path} was gone, and is made anew from the ledgers beside it: whether one of them was "
                "rolled back, and which others there are, cannot be told; name those with --ledger",
                stacklevel=2,
            )


def is_begun(path: Path) -> bool:
    """Whether there is a ledger, and not only the beginning of one that was cut off."""
    if not path.exists():
        return False
    chain = Chain.open(path, mode="rw", busy_timeout_s=30.0)
    try:
        with chain.transaction(write=True):
            return not chain.is_new()
    finally:
        chain.close()


def _row(path: Path, witness: Path | None) -> Registered:
    """What the registry has to know of a ledger, under the name and the content that its terms give."""
    with Ledger.open(path, witness=witness) as ledger:
        its = ledger.data_identity
        return Registered(
            id=ledger.id,
            unit=its.unit or "",
            path=path,
            witness=beside(path) if witness is None else witness,
            mark=ledger.mark,
            division=its.division or None,
            names=(its.name,),
            fingerprints=() if its.fingerprint is None else (its.fingerprint,),
            wholes=() if its.whole is None else (its.whole,),
        )


def _check_unchanged(known: Registered, identity: DataIdentity) -> None:
    """The content of the data of this name is what it was, as far as can be told."""
    told = [same(known_content, identity.fingerprint) for known_content in known.fingerprints]
    if False in told:
        raise LedgerMismatch(
            f"the data {identity.name!r} are not those that their ledger {known.path} is about: their content has "
            "changed. If they are a later version of those, about some of the same people, let the ledger go on for "
            "them with `incrowd ledger include`; if nobody is in both, give them a name of their own (data.identity); "
            "`incrowd ledger fresh` forgets what was spent, and says so for good"
        )
    if told and identity.fingerprint is not None:
        warnings.warn(
            f"the key in {known.path} 's state folder is another than the one that the data {identity.name!r} were "
            "known by, so they are known by their name alone",
            stacklevel=2,
        )


def _check_same(path: Path, its: DataIdentity, identity: DataIdentity) -> None:
    """A ledger that lies where these data's should be, and is not registered, is theirs."""
    content = same(its.fingerprint, identity.fingerprint)
    fits = content if content is not None else its.fingerprint is None or its.name == identity.name
    if not fits or its.public or its.unit not in (None, identity.unit):
        raise LedgerMismatch(
            f"{path} is the ledger of other data, {its}: name another file; if these are the same under another key, "
            f"state data.identity = {its.name!r}"
        )


def _check_fits(known: Registered, ledger: Ledger, identity: DataIdentity, budget: Budget, relation: Relation) -> None:
    """What the ledger adds up is what this run would add to it."""
    differences = [
        ("privacy.delta", ledger.budget.delta, budget.delta),
        ("the neighbouring relation, which follows from privacy.sampling,", ledger.relation.name, relation.name),
        ("what makes up one unit", known.division, identity.division),
    ]
    for name, its, given in differences:
        if its is not None and its != given:
            raise LedgerMismatch(
                f"{known.path} is the ledger of these data ({_listed(known.names)}), and {name} is {its!r} there and "
                f"{given!r} here, so that the two cannot be added up: use its own, or begin afresh with `incrowd "
                "ledger fresh`, which says for good what it forgets"
            )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
