"""A party of a federation: one door for all questions of a server, with the guard in front."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import BudgetExceeded, SpecificationRefused
from incrowd.learning.engine import CohortEngine
from incrowd.parties.contribution import MaskedPart, OwnRecords, Part, SiloPart
from incrowd.parties.frames import MOST_BESIDE, Frame, Place, Request, opened, refusal
from incrowd.parties.guard import Guard, Identity
from incrowd.parties.offer import Offer, in_words_of_the_server
from incrowd.parties.policy import PartyPolicy
from incrowd.parties.roster import Roster
from incrowd.privacy.daily import utc_today
from incrowd.privacy.plan.plan import Plan, Unit

_OFFERS = ("offer", "trial")
_KINDS = ("request", *_OFFERS, "keys", "list")

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

    Parties that share noise answer keys and lists, too, with the owner's compared `roster`: see `MaskedPart`.

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
        self._parts: dict[str, Part] = {}

    def close(self) -> None:
        """Close the files."""
        self.guard.close()

    def answer(self, frame: bytes) -> bytes:
        """The answer to an offer, a trial of one, or a question."""
        most = self.policy.most_weights
        found = opened(frame, _KINDS, key=self.identity.server, most=MOST_BESIDE + 4 * most)
        plan, number = found.place.plan, None if found.kind in _OFFERS else found.place.round
        if found.kind == "list":  # a sum has a name of its own
            label = found.head.get("label")
            plan = label if isinstance(label, str) and label.isprintable() else ""
        with self.guard.turn, self.guard.noting(plan, number):
            if found.kind in _OFFERS:
                return self._offered(found, frame)
            if found.kind == "request":
                return self._answered(Request.of(found, most=most))
            return self._part(self._accepted(plan)).told(found, frame)

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

    def _offered(self, frame: Frame, data: bytes) -> bytes:
        """Accept an offer; a trial only checks it."""
        with in_words_of_the_server():
            offer = Offer.of(frame)
        name, label = self.identity.name, offer.fingerprint
        if name not in offer.parties:
            raise SpecificationRefused(f"the offer names no party {name}")
        unit = offer.form_of(name).get("unit")
        if unit != self.guard.unit:
            raise SpecificationRefused(f"an offer for the unit {unit!r}, and this party's is {self.guard.unit!r}")
        part = self._part(offer)
        if self.guard.offer(label) is None:
            self.guard.check_offers(data)
            part.check()
        if frame.kind == "trial":
            part.check_room()
        else:
            part.reserve()
            self.guard.accept(label, data)
        return self.identity.sealed("acceptance", Place(plan=label))

    def _answered(self, request: Request) -> bytes:
        offer = self._accepted(request.place.plan)
        if request.weights.size != offer.weights:
            raise SpecificationRefused("a question for another model than the offer's")
        part = self._part(offer)
        part.check_question(request)
        kept = self.guard.kept(request)
        if kept is not None:
            return kept
        part.check_new(request)
        self.guard.take_up(request)
        answer = part.answer(request)
        if part.keeps:
            self.guard.keep(request, answer)
        return answer

    def _accepted(self, plan: str) -> Offer:
        if plan not in self._offers:
            frame = self.guard.offer(plan)
            if frame is None:
                raise SpecificationRefused("a round of a plan that this party has not accepted")
            self._offers[plan] = Offer.read(frame, key=self.identity.server)
        return self._offers[plan]

    def _part(self, offer: Offer) -> Part:
        """The party's work for an offer that its policy allows."""
        label = offer.fingerprint
        if label not in self._parts:
            plan = self._allowed(offer)
            while len(self._parts) >= _OPEN:
                idle = [label for label, part in self._parts.items() if not part.ready]
                del self._parts[next(iter(idle or self._parts))]
            kind = MaskedPart if plan.noise_by == "parties" else Part if offer.together else SiloPart
            self._parts[label] = kind(self.guard, offer, plan, self._learner(offer), self.randomness)
        return self._parts[label]

    def _allowed(self, offer: Offer) -> Plan:
        """The plan of an offer, if the policy and the compared roster allow it."""
        name = self.identity.name
        self.policy.look(offer, name)  # a plan takes time to price, so it is measured first
        with in_words_of_the_server():
            plan = offer.plan_of(name)
        self.policy.check(offer, plan)
        if plan.noise_by != "parties":
            return plan
        with in_words_of_the_server("an offer whose roster is none: "):
            offered = Roster.from_json(offer.roster)
        if self.roster != offered:
            raise SpecificationRefused(
                f"the roster {offered.shown} is not the one that this party has compared (incrowd party compare)"
            )
        return plan
