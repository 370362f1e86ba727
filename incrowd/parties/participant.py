"""A party of a federation: one guard for all questions of a server, on the party's own ledger."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, SpecificationRefused
from incrowd.learning.engine import CohortEngine
from incrowd.parties.contribution import ClientPart, Contributor, OwnRecords, RecordPart, SiloPart
from incrowd.parties.frames import MOST_BESIDE, Place, Request, kind_of, refusal, sealed, unsealed
from incrowd.parties.guard import Guard, Identity
from incrowd.parties.offer import Offer, OfferKind, in_words_of_the_server, made, signed_offer
from incrowd.parties.policy import PartyPolicy
from incrowd.parties.roster import Roster
from incrowd.parties.secure_sum import Member, SumPlan, sum_plan
from incrowd.privacy.daily import utc_today
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.shared import NoiseShare
from incrowd.privacy.paid import ShareRun
from incrowd.privacy.plan.plan import NoiseBy, Unit

_OFFERS: Mapping[str, OfferKind] = {"offer": "offer", "trial": "trial"}

_OPEN = 2  # offers whose engines are kept from round to round

Learner = Callable[[Offer], CohortEngine | OwnRecords]
"""Builds the training for an offer: an engine with the party's examples at its number, or its records."""

SUMS = "sums"
"""The subfolder of a party's folder with the keys of its sums."""


class Masked(Contributor):
    """A party that masks its part: it answers a question with `ready`, and a list with the part itself.

    Guarantee: the roster of the offer is the one that the owner has compared. The party computes its part before it
    pays. The charge follows the list, which sets the noise of a share.
    """

    keeps = False
    _member: Member | None = None
    _ready: tuple[int, str, Whole, bytes] | None = None

    @property
    def ready(self) -> bool:
        """See `Contributor.ready`."""
        return self._ready is not None

    @property
    def run(self) -> ShareRun:
        """The rounds that the party's own ledger pays."""
        label, randomness = self.offer.fingerprint, self.party.randomness
        run = ShareRun(self.plan, ledger=self.ledger, randomness=randomness, label=label, owner=self.owner)
        run.name_third_party(self.third_party)
        return run

    @property
    def member(self) -> Member:
        """The party's side of the sum, with its keys on disk."""
        if self._member is None:
            identity, label = self.party.identity, self.offer.fingerprint
            self._member = Member(
                self.party.folder / SUMS / label[:32],
                sum_plan(self.plan, self.offer),
                name=identity.name,
                key=identity.key,
                server=identity.server,
                least_colluders=self.party.policy.least_colluders,
            )
        return self._member

    def check_own(self) -> None:
        """See `Contributor.check_own`."""
        super().check_own()
        try:
            offered = Roster.from_json(self.offer.roster)
        except ConfigError as error:
            raise SpecificationRefused(f"an offer whose roster is none: {error}") from error
        if self.party.roster is None or self.party.roster != offered:
            raise SpecificationRefused(
                f"the roster {offered.shown} is not the one that this party has compared (incrowd party compare)"
            )

    def reserve(self) -> None:
        """See `Contributor.reserve`."""
        self.run.reserve()

    def admit(self, request: Request) -> None:
        """Refuse a round that exceeds the day, before any computation."""
        event = self.plan.round(request.place.round).event
        self.party.guard.daily(self.ledger).check([(event, 1)])

    def answer(self, request: Request) -> bytes:
        """Compute the part, and answer `ready`, before any payment."""
        number, digest = request.place.round, request.digest
        if self._ready is None or self._ready[:2] != (number, digest):
            self._ready = number, digest, self.whole(request), self.member.ready(number, digest)
        return self._ready[3]

    def told(self, kind: str, place: Place, frame: bytes) -> bytes:
        """Agree on keys, or pay for the round of a list and send the masked part."""
        member = self.member
        if kind == "list":
            part = None if self._ready is None else self._ready[2]
            answer = member.answer(frame, part, pay=self._pay(place.round))
            if self._ready is not None and self._ready[0] == place.round:
                self._ready = None  # a list of a round before may come again
            return answer
        hellos, hidden = _bundle(member.plan, place.round, frame, key=self.party.identity.server)
        if place.round == 0:
            return member.hello()
        if place.round == 1:
            return member.seal(hellos)
        member.agree(hellos, hidden)
        return member.zeros()

    def whole(self, request: Request) -> Whole:
        """The part, in whole steps of its grid."""
        raise NotImplementedError

    def _pay(self, number: int) -> Callable[[NoiseShare], Receipt]:
        return lambda share: self.run.share(number, share)


class MaskedClient(Masked, ClientPart):
    """A party that is protected as a whole, by noise that all share."""

    def whole(self, request: Request) -> Whole:
        """See `Masked.whole`."""
        task = self._task(request)
        return Whole(steps=self.computed(task, request, None).steps, step=task.step)


class MaskedRecords(Masked, RecordPart):
    """A silo that sends the masked sums of batches of its records."""

    def whole(self, request: Request) -> Whole:
        """See `Masked.whole`."""
        return self.summed(request)


def _bundle(
    plan: SumPlan, stage: int, frame: bytes, *, key: Ed25519PublicKey
) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """The hellos and the sealed secrets of all parties that a stage has."""
    _, head, body = unsealed(frame, kind="keys", key=key, most=MOST_BESIDE)
    sizes, names = head.get("sizes"), plan.roster.names
    whole = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
    if not whole or not isinstance(sizes, list) or stage > 2 or len(sizes) != stage * len(names):
        raise DataError("keys that are not of all parties of the roster")
    if sum(sizes) != len(body):
        raise DataError("keys that are not as long as they say")
    ends = list(accumulate(sizes, initial=0))
    pieces = [bytes(body[start:end]) for start, end in pairwise(ends)]
    return dict(zip(names, pieces, strict=False)), dict(zip(names, pieces[len(names) :], strict=False))


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

    Parties that share noise answer keys and lists, too, with the owner's compared `roster`: see `Masked`.

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
        """The answer to an offer, a trial of one, or a question."""
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
