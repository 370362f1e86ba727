"""A party of a federation: one guard for all questions of a server, on the party's own ledger."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import BudgetExceeded, SpecificationRefused
from incrowd.learning import CohortEngine
from incrowd.parties.contribution import ClientPart, Contributor, OwnRecords, RecordPart, SiloPart
from incrowd.parties.frames import MOST_BESIDE, Place, Request, kind_of, refusal, sealed, unsealed
from incrowd.parties.guard import Guard, Identity
from incrowd.parties.masked import MaskedClient, MaskedRecords
from incrowd.parties.offer import Offer, OfferKind, in_words_of_the_server, made, signed_offer
from incrowd.parties.policy import PartyPolicy
from incrowd.parties.roster import Roster
from incrowd.privacy.daily import utc_today
from incrowd.privacy.plan.plan import NoiseBy, Unit

_OFFERS: Mapping[str, OfferKind] = {"offer": "offer", "trial": "trial"}
_OPEN = 2  # offers whose engines are kept from round to round


Learner = Callable[[Offer], CohortEngine | OwnRecords]
"""Builds the training for an offer: an engine with the party's examples at its number, or its records."""


class Participant:
    """A party in a folder, with a ledger of its own, which answers one server.

    A server offers a plan once, then asks for its rounds, and silos at the end for their claims and reports. A
    contribution leaves clipped, on the public grid, with the party's own noise where noise is local.

    Guarantee: a round is on the ledger's disk before the party computes its part or draws noise, and all earlier rounds
    with it: a plan that draws its clients also costs a party the rounds that did not draw it. The answer is on disk
    before the party sends it; for the same question it sends the same bytes and charges nothing. It gives one answer a
    round, in order: it refuses and notes the second of two servers that go on from one copy, once their questions
    differ. A question that the policy forbids, or that exceeds the ledger, is refused unspent. The party tries an offer
    on synthetic records before it accepts, and runs no code of the server's.

    Parties that share noise answer keys and lists, too: see `incrowd.parties.masked`, with the owner's compared
    `roster`.

    Edge cases: a party that is killed between charge and answer computes the answer again; with its own unseeded noise
    it loses the round, because one charge pays for one draw. A party that has lost its memory, and not its ledger,
    answers no round that it has paid for. A stricter policy holds for accepted offers too. Two processes of a party
    take turns.
    """

    def __init__(
        self,
        folder: Path,
        *,
        identity: Identity,
        policy: PartyPolicy,
        learner: Learner,
        unit: Unit = "client",
        roster: Roster | None = None,
        randomness: Randomness | None = None,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.policy = policy
        self.randomness = randomness or SystemRandomness()
        self.guard = Guard(folder, identity=identity, policy=policy, unit=unit, today=today)
        self.roster = roster
        self._learner = learner
        self._offers: dict[str, Offer] = {}
        self._parts: dict[str, Contributor] = {}

    def close(self) -> None:
        """Close the files."""
        self.guard.close()

    def check_ledger(self) -> None:
        """Check that a ledger which was begun exists and fits the owner's file: see `Guard.check_ledger`."""
        self.guard.check_ledger()

    def answer(self, frame: object) -> bytes:
        """The answer to an offer, a trial of one, or a question.

        Edge cases: a frame that the server has not signed: `DataError`; anything that the policy, the plan or the order
        of rounds does not allow: `SpecificationRefused`; no room on the ledger or in the day: `BudgetExceeded`.
        """
        key, most = self.identity.server, self.policy.most_weights
        kind = kind_of(frame, ("request", *_OFFERS, "keys", "list"), key=key, most=MOST_BESIDE + 4 * most)
        if kind in _OFFERS:
            plan, form = signed_offer(frame, key=key, kind=_OFFERS[kind])
            with self.guard.turn, self.guard.noting(plan, None):
                with in_words_of_the_server():
                    offer = made(plan, form)
                return self._offered(offer, frame, _OFFERS[kind])
        if kind != "request":
            place, head, _ = unsealed(frame, kind=kind, key=key, most=MOST_BESIDE)
            label = head.get("label") if kind == "list" else place.plan  # a sum has a name of its own
            plan = label if isinstance(label, str) and label.isprintable() else ""
            with self.guard.turn, self.guard.noting(plan, place.round):
                assert isinstance(frame, bytes)  # noqa: S101 - it was read
                return self._contributor(self._accepted(plan)).told(kind, place, frame)
        request = Request.read(frame, key=key, most=most)
        with self.guard.turn, self.guard.noting(request.place.plan, request.place.round):
            return self._answered(request)

    def reply(self, frame: bytes) -> bytes:
        """The answer, or a signed refusal whose words reveal nothing about the party's data.

        Guarantee: a refusal names no other question of any server, and only says that room is lacking, never how much
        is left.

        Edge cases: every other error is raised for the owner, and the server gets no answer.
        """
        try:
            return self.answer(frame)
        except (SpecificationRefused, BudgetExceeded) as error:
            why = "this party's allowance has no room for it" if isinstance(error, BudgetExceeded) else str(error)
            return refusal(why, question=frame, party=self.identity.name, key=self.identity.key)

    def sealed(self, kind: str, place: Place, head: Mapping[str, Any] | None = None, body: bytes = b"") -> bytes:
        """A frame of this party's."""
        place = replace(place, party=self.identity.name)
        return sealed(kind, place, dict(head or {}), body, key=self.identity.key)

    def _offered(self, offer: Offer, frame: object, kind: OfferKind) -> bytes:
        """Accept an offer; a trial only checks it."""
        name, new = self.identity.name, self.guard.memory.offer(offer.fingerprint) is None
        if name not in offer.parties:
            raise SpecificationRefused(f"the offer names no party {name}")
        unit = offer.form_of(name).get("unit")
        if unit != self.guard.unit:
            raise SpecificationRefused(f"an offer for the unit {unit!r}, and this party's is {self.guard.unit!r}")
        contributor = self._contributor(offer)
        if new:
            self.guard.check_offers(frame)
            contributor.check()
        if kind == "trial":
            contributor.check_room()
        else:
            contributor.reserve()
            assert isinstance(frame, bytes)  # noqa: S101 - it was read
            self.guard.memory.accept(offer.fingerprint, server=self.identity.server_name, offer=frame)
        return self.sealed("acceptance", Place(plan=offer.fingerprint, round=0, party=name))

    def _answered(self, request: Request) -> bytes:
        plan, number = request.place.plan, request.place.round
        offer = self._accepted(plan)
        if request.clients or request.weights.size != offer.weights:
            raise SpecificationRefused("a question that is not for this party and this model")
        contributor = self._contributor(offer)
        contributor.check_question(request)
        kept = self.guard.kept(request)
        if kept is not None:
            return kept
        contributor.admit(request)
        self.guard.take_up(request)
        answer = contributor.answer(request)
        if contributor.keeps:
            self.guard.memory.keep(plan, number, answer)
        return answer

    def _accepted(self, plan: str) -> Offer:
        if plan not in self._offers:
            frame = self.guard.memory.offer(plan)
            if frame is None:
                raise SpecificationRefused("a round of a plan that this party has not accepted")
            self._offers[plan] = Offer.read(frame, key=self.identity.server)
        return self._offers[plan]

    def _contributor(self, offer: Offer) -> "Contributor":
        """The party's work for an accepted offer, if the present policy still allows it."""
        name = self.identity.name
        self.policy.look(offer, name)  # a plan takes time to price, so it is measured first
        with in_words_of_the_server():
            plan = offer.plan_of(name)
        self.policy.check(offer, plan)
        if offer.fingerprint not in self._parts:
            while len(self._parts) >= _OPEN:
                idle = [name for name, part in self._parts.items() if not part.ready]
                del self._parts[next(iter(idle or self._parts))]
            own = self._learner(offer)
            kind = CONTRIBUTORS[plan.unit, plan.noise_by]
            self._parts[offer.fingerprint] = kind(self, offer, plan, own)
        return self._parts[offer.fingerprint]


CONTRIBUTORS: Mapping[tuple[Unit, NoiseBy], type[Contributor]] = {
    ("client", "server"): ClientPart,
    ("client", "party"): ClientPart,
    ("client", "parties"): MaskedClient,
    ("record", "server"): RecordPart,
    ("record", "party"): SiloPart,
    ("record", "parties"): MaskedRecords,
}
"""The work of a party, by the unit of protection and the actor that adds noise."""
