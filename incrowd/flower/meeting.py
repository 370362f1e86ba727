"""Who takes part in a run: which parties are enrolled, which have accepted its offer, and which do not, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd.errors import ConfigError, DataError
from incrowd.flower.attendance import Attendance
from incrowd.flower.keys import Enrolment, read_enrolment
from incrowd.flower.network import Node
from incrowd.flower.offer import Offer, OfferKind
from incrowd.flower.rounds import Line, Patience, ask
from incrowd.flower.silo_offer import SiloOffer
from incrowd.flower.wire import read_refusal, unsealed
from incrowd.runs.data_config import Parties
from incrowd.runs.sources import enrolled

LONGEST_REPLY = 2**15
"""Bytes of what a party says to an offer, at most."""

_AGAIN = 60.0
_GATHERING = 30.0
_MOST_REASONS = 100  # parties put them as they like

Say = Callable[[str], None]


def enrolments(data: Parties) -> list[Enrolment]:
    """The parties whose enrolments lie in the folder, but for those who have gone.

    Edge cases: a file that bears another party's name is refused.
    """
    found = []
    for name in enrolled(data):
        path = Path(data.enrolled) / f"{name}.pub"
        if not path.exists():
            continue
        enrolment = read_enrolment(path)
        if enrolment.name != name:
            raise ConfigError(field="data.enrolled", value=str(path), remedy=f"it is the enrolment of {enrolment.name}")
        found.append(enrolment)
    return found


class EnrolledLine(Line, Protocol):
    """A way to parties, who have names and come and go."""

    @property
    def nodes(self) -> dict[str, int]:
        """The number of each enrolled party."""
        ...

    def present(self) -> frozenset[str]:
        """The parties that are connected."""
        ...

    def remove(self, name: str) -> None:
        """Let a party take part no longer."""
        ...


@dataclass(kw_only=True, eq=False)
class Meeting:
    """Who is enrolled, who has accepted an offer, and who has not and why."""

    link: EnrolledLine
    data: Parties
    offer: Offer | SiloOffer
    key: Ed25519PrivateKey = field(repr=False)
    patience: Patience
    say: Say
    least: int | None = None
    accepted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    attendance: Attendance = field(default_factory=Attendance)
    _asked: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._keys = {each.name: each.verifier() for each in enrolments(self.data)}

    @property
    def nodes(self) -> dict[int, Node]:
        """Those who take part, by their numbers as clients."""
        places = {name: place for place, name in enumerate(self.offer.parties)}
        there = self.link.nodes
        return {
            places[name]: Node(id=there[name], party=name, key=self._keys[name])
            for name in sorted(self.accepted)
            if name in there
        }

    def told(self, why: str) -> None:
        """A party refuses a round: say so, once for each reason, and not which party, for who was drawn is secret."""
        if why not in self._told and len(self._told) < _MOST_REASONS:
            self._told.add(why)
            self.say(f"a party that was asked refuses: {why}")

    def gather(self, *, begun: bool) -> None:
        """Offer until enough have accepted; a run that has begun waits half a minute for all, and goes on with some.

        Edge cases: not enough do in time: `DataError`, which says who is missing and who refuses, and why.
        """
        clock, patience = self.patience.clock, self.patience
        begin, needed = clock.now(), 1 if begun else self.least or len(self.offer.parties)
        told = ""
        self._let_go()
        while True:
            silent = [name for name in self.link.nodes if name not in self.accepted]
            self._offer(silent, seconds=patience.again)
            if (line := self._standing()) != told:
                self.say(line)
                told = line
            elapsed, everyone = clock.now() - begin, len(self.link.nodes)
            enough = len(self.accepted) >= needed
            if enough and (not begun or elapsed >= _GATHERING or len(self.accepted) + len(self.refused) == everyone):
                return
            if elapsed >= patience.timeout or everyone - len(self.refused) < needed:
                raise DataError(f"{line}; {needed} are needed: see to them, or begin with fewer (--least)")

    def renew(self) -> None:
        """Before a round: let those go who are not enrolled any more, and offer to those who have come."""
        self._let_go()
        now = self.patience.clock.now()
        waiting = [
            name for name in self.link.present() - self.accepted if now - self._asked.get(name, -_AGAIN) >= _AGAIN
        ]
        if waiting:
            self._offer(waiting, seconds=self.patience.again)
            self.say(self._standing())

    def _let_go(self) -> None:
        """Those who are not enrolled any more: their keys open nothing."""
        gone = [name for name in self.link.nodes if not (Path(self.data.enrolled) / f"{name}.pub").exists()]
        for name in gone:
            self.link.remove(name)
            self.say(f"{name} is enrolled no longer")

    def answers(self, kind: OfferKind, names: Sequence[str], *, seconds: float) -> dict[str, str]:
        """What parties say to the offer, as far as they answer in time: nothing, or why they do not accept."""
        named = {self.link.nodes[name]: name for name in names}
        frame = self.offer.to_bytes(self.key, kind=kind)

        def read(node: int, reply: bytes) -> str:
            key = self._keys[named[node]]
            why = read_refusal(reply, question=frame, key=key)
            if why is not None:
                return why or "it does not say why"
            place, _, _ = unsealed(reply, kind="acceptance", key=key, most=0)
            if (place.plan, place.party) != (self.offer.fingerprint, named[node]):
                raise DataError("an acceptance of another offer, or by another party")
            return ""

        patience = self.patience
        brief = Patience(timeout=seconds, again=min(patience.again, seconds), poll=patience.poll, clock=patience.clock)
        found = ask(self.link, dict.fromkeys(named, frame), longest=LONGEST_REPLY, read=read, patience=brief)
        return {named[node]: why for node, why in found.items()}

    def _offer(self, names: Sequence[str], *, seconds: float) -> None:
        for name, why in self.answers("offer", names, seconds=seconds).items():
            self._asked[name] = self.patience.clock.now()
            if why:
                self.refused[name] = why
            else:
                self.accepted.add(name)
                self.refused.pop(name, None)

    def _standing(self) -> str:
        missing = [name for name in self.offer.parties if name not in self.accepted and name not in self.refused]
        words = [f"{len(self.accepted)} of {len(self.offer.parties)} parties take part"]
        words += [f"{name} does not: {why}" for name, why in sorted(self.refused.items())]
        words += [f"not there: {', '.join(missing)}"] if missing else []
        return "; ".join(words)
