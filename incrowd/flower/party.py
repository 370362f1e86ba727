"""A real party: it trains on its own data, and trusts its own ledger rather than the server's word."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, SpecificationRefused
from incrowd.flower.brake import Brake, Identity
from incrowd.flower.offer import FORMAT, Offer, Offered, OfferKind
from incrowd.flower.policy import PartyPolicy
from incrowd.flower.wire import Place, Request, sealed
from incrowd.flower.work import RoundTask, part, trainer_of
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.daily import utc_today
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import PerLayerClip, QuantileClip, ScalingClip, clip_rows, part_norms
from incrowd.privacy.plan.sampling import Cyclic

__all__ = ["Identity", "Learner", "Party", "alone"]

_ENGINES = 2

Learner = Callable[[Offer], CohortEngine]
"""Makes what trains for an offer: an engine in which the party's examples are those of its number (see `alone`)."""


class Party:
    """What answers a server, on a ledger of its own, in a folder.

    A server offers a plan once, and then asks for its rounds. A contribution leaves clipped, on the public grid; where
    the plan's noise is local, with the party's own noise on it.

    Guarantee: all rounds up to the one that is answered are on the party's ledger's disk before it trains: a plan that
    draws its clients costs those their part who were not drawn. The answer is on the disk before it is given; asked the
    same again, the party gives the same bytes and charges nothing. It gives one answer a round, and rounds in order: a
    server that was restarted from nothing or from an old copy, and two that go on from one copy, are refused as soon as
    they ask differently what was asked before, and the refusal is noted. What the policy does not allow, or the ledger
    has no room for, is refused, and nothing is spent. No code of the server's is run.

    Edge cases: who is killed between charging and keeping the answer trains again; where noise was local, from the
    operating system, that round is lost instead, for noise is not drawn twice for one charge. An answer older than the
    last few is not given again. A party that has lost its memory, and not its ledger, answers none of the rounds that
    it has paid for. An offer that the policy does not allow any more is answered no longer. Two processes of one party
    wait for each other.
    """

    def __init__(
        self,
        folder: Path,
        *,
        identity: Identity,
        policy: PartyPolicy,
        learner: Learner,
        randomness: Randomness | None = None,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.policy = policy
        self._learner = learner
        self._randomness = randomness or SystemRandomness()
        self._brake = Brake(folder, identity=identity, policy=policy, unit="client", today=today)
        self._memory = self._brake.memory
        self._turn = self._brake.turn
        self._offers: dict[str, Offer] = {}
        self._engines: dict[str, CohortEngine] = {}

    def close(self) -> None:
        """Let go of the files."""
        self._brake.close()

    def check_ledger(self) -> None:
        """See that a ledger which was begun is there and is what is stated now: see `Brake.check_ledger`."""
        self._brake.check_ledger()

    def reply(self, frame: object) -> bytes:
        """What the party says to an offer, a trial of one, or a request. Edge cases: as `accept` and `answer`."""
        for kind, answered in _OFFERS.items():
            try:
                offered = Offered.read(frame, key=self.identity.server, kind=kind)
            except DataError:
                continue
            return answered(self, offered, frame)
        return self.answer(frame)

    def accept(self, frame: object) -> bytes:
        """Take part in the plan that a server offers, if the policy allows it: room for all of it is kept.

        Guarantee: what the server has signed and the party does not accept is noted, whatever is wrong with it.

        Edge cases: what the server has not signed: `DataError`; what the policy does not allow: `SpecificationRefused`;
        a plan that the ledger has no room for: `BudgetExceeded`; data that do not fit it: as the learner says.
        """
        return self._accepted(Offered.read(frame, key=self.identity.server), frame)

    def answer(self, frame: object) -> bytes:
        """The party's contribution to a round.

        Edge cases: what the server has not signed: `DataError`; another plan, another question in a round that was
        asked for, a round before it, one that is another party's turn, another clip than the plan's:
        `SpecificationRefused`; more than a day's epsilon: `BudgetExceeded`.
        """
        request = Request.read(frame, key=self.identity.server, most=self.policy.most_weights)
        plan, number = request.place.plan, request.place.round
        with self._turn, self._brake.noting(plan, number, SpecificationRefused, BudgetExceeded):
            task = self._task(request)
            kept = self._kept(request)
            return self._trained(task, request) if kept is None else kept

    def _accepted(self, offered: Offered, frame: object) -> bytes:
        with self._turn, self._brake.noting(offered.plan, None, IncrowdError):
            offer = self._priced(offered)
            self._check(offer)  # before anything is reserved
            if self._memory.offer(offer.fingerprint) is None:
                self._brake.check_offers(frame)
            self._open(offer).reserve(offer.plan.runs, label=offer.fingerprint)
            assert isinstance(frame, bytes)  # noqa: S101 - it was read
            self._memory.accept(offer.fingerprint, server=self.identity.server_name, offer=frame)
        return self._agreement(offer)

    def _priced(self, offered: Offered) -> Offer:
        """An offer, if it is not more than this party allows: to price it takes time."""
        if offered.form.get("format") != FORMAT:
            raise SpecificationRefused('an offer of another kind: this party takes part as a whole (unit = "client")')
        self.policy.look(offered.form)
        return offered.made(Offer.from_json)

    def _tried(self, offered: Offered, _: object) -> bytes:
        """See whether an offer would be taken up; nothing is reserved."""
        with self._turn, self._brake.noting(offered.plan, None, IncrowdError):
            offer = self._priced(offered)
            self._check(offer)
            self._open(offer).check_room(offer.plan.runs)
        return self._agreement(offer)

    def _agreement(self, offer: Offer) -> bytes:
        place = Place(plan=offer.fingerprint, round=0, party=self.identity.name)
        return sealed("acceptance", place, {}, b"", key=self.identity.key)

    def _check(self, offer: Offer) -> None:
        """Refuse what is not allowed, and what could be paid for and not be done: data, weights or a clip that do not
        fit.
        """
        if self.identity.name not in offer.parties:
            raise SpecificationRefused(f"the offer names no party {self.identity.name}")
        self.policy.check(offer)
        engine, clip = self._engine(offer), offer.clip
        size, parts = engine.size, engine.parts
        if size != offer.weights:
            raise SpecificationRefused(f"the offer has {offer.weights} weights, and the model that it describes {size}")
        if isinstance(clip, PerLayerClip) and clip.parts != parts:
            raise SpecificationRefused(f"the clip is for layers of {clip.parts} weights, the model's are {parts}")
        try:
            task = RoundTask.stated(offer, 0, clip)
            clip_rows(task.clip, np.zeros((1, offer.size)))
            if isinstance(task.clip, ScalingClip):
                part_norms(np.zeros((1, offer.size)), task.clip.parts)
            task.expected(Place(plan=offer.fingerprint, round=0, party=self.identity.name), contributions=1)
            engine.rehearse(np.zeros(size, np.float32))
            trainer_of(offer, engine, np.zeros(size, np.float32), randomness=self._randomness)
        except ConfigError as error:
            raise SpecificationRefused(f"an offer whose rounds cannot be done: {error}") from error

    def _task(self, request: Request) -> RoundTask:
        """The round that is asked for."""
        offer = self._offer(request.place.plan)
        if offer is None:
            raise SpecificationRefused("a round of a plan that this party has not accepted")
        if request.clients or request.weights.size != offer.weights:
            raise SpecificationRefused("a question that is not for this party and this model")
        self.policy.check(offer)  # which may have become stricter since
        try:
            task = RoundTask.of(offer, request)
        except ConfigError as error:
            raise SpecificationRefused(f"a round that the plan does not know: {error}") from error
        sampler, own = offer.plan.round(task.round).sampler, offer.parties.index(self.identity.name)
        if isinstance(sampler, Cyclic) and not sampler.has_turn(own, round=task.round):
            raise SpecificationRefused(f"round {task.round} is another party's turn in this plan")
        return task

    def _kept(self, request: Request) -> bytes | None:
        """The answer that was given to this question before; None for one that is new, or was not answered yet."""
        plan, number = request.place.plan, request.place.round
        kept = self._brake.kept(request)
        if kept is None:
            self._check_remembered(plan, number)
            self._check_day(plan, number)  # also of a question that was taken up before, and not paid for
            self._brake.take_up(request)
        return kept

    def _trained(self, task: RoundTask, request: Request) -> bytes:
        """Charge the round, train, and keep the answer."""
        offer, number, identity = task.offer, task.round, self.identity
        receipt = self._charge(task)
        found = part(
            task,
            replace(request, clients=(offer.parties.index(identity.name),)),
            place=replace(request.place, party=identity.name),
            engine=self._engine(offer),
            randomness=self._randomness,
            receipt=receipt,
        )
        # How the norm compares with the bound is told where the plan pays for it, and nothing else beside the steps.
        told = replace(found, unclipped=found.unclipped if isinstance(task.clip, QuantileClip) else 0, dropped=0)
        answer = told.to_bytes(identity.key)
        self._memory.keep(offer.fingerprint, number, answer)
        return answer

    def _charge(self, task: RoundTask) -> Receipt | None:
        """Pay for all rounds up to this one; the receipt of its own, where the party has noise to add."""
        offer, ledger = task.offer, self._open(task.offer)
        charged = ledger.reservation(offer.fingerprint).charged
        lost = task.round < charged  # in another life of this process, which ended before there was an answer
        if lost and task.noise is None:
            return None
        if lost and not self._randomness.simulated:
            raise SpecificationRefused(f"round {task.round} was paid for and lost: noise is not drawn twice for it")
        day, receipt = self._brake.daily(ledger).day(), None
        for number in range(min(charged, task.round), task.round + 1):
            said = offer.plan.round(number)
            own = number == task.round and task.noise is not None
            receipt = ledger.charge(
                said.event,
                pays_for=((task.noise, 1),) if own else (),
                randomness=self._randomness,
                key=f"{offer.fingerprint}: round {number}",
                reservation=offer.fingerprint,
                note={
                    "plan": offer.fingerprint,
                    "round": number,
                    "server": self.identity.server_name,
                    "noise_multiplier": said.noise_multiplier,
                    "what": "training" if offer.scoring is None else "evaluation",
                    "day": day,
                },
            )
        return receipt

    def _check_remembered(self, plan: str, number: int) -> None:
        """Refuse a round that the ledger has paid for, and the memory knows nothing of: it may have been answered."""
        offer = self._offer(plan)
        known = self._memory.question(plan, number) is not None
        if offer is not None and not known and number < self._open(offer).reservation(plan).charged:
            raise SpecificationRefused(
                f"round {number} was paid for, and what was asked in it is not known: the party's memory is lost, or "
                "an old copy"
            )

    def _check_day(self, plan: str, number: int) -> None:
        """Refuse what would cost more than a day's epsilon."""
        offer = self._offer(plan)
        if self.policy.daily_epsilon is None or offer is None:
            return
        ledger = self._open(offer)
        charged = ledger.reservation(plan).charged
        if number < charged:
            return
        self._brake.daily(ledger).check([(offer.plan.round(each).event, 1) for each in range(charged, number + 1)])

    def _offer(self, plan: str) -> Offer | None:
        if plan not in self._offers:
            frame = self._memory.offer(plan)
            if frame is None:
                return None
            self._offers[plan] = Offer.read(frame, key=self.identity.server)
        return self._offers[plan]

    def _engine(self, offer: Offer) -> CohortEngine:
        if offer.fingerprint not in self._engines:
            while len(self._engines) >= _ENGINES:  # whatever is offered and refused
                del self._engines[next(iter(self._engines))]
            self._engines[offer.fingerprint] = self._learner(offer)
        return self._engines[offer.fingerprint]

    def _open(self, offer: Offer) -> Ledger:
        return self._brake.ledger(offer.plan.relation)


_OFFERS: Mapping[OfferKind, Callable[[Party, Offered, object], bytes]] = {
    "offer": Party._accepted,
    "trial": Party._tried,
}


def alone(own: ClientTensors, *, number: int, clients: int) -> ClientTensors:
    """The examples of one client as those of client `number` of so many, of whom nobody else is here."""
    if own.present != 1 or not 0 <= number < clients:
        raise ConfigError(field="number", value=number, remedy=f"give the examples of one client, one of {clients}")
    offsets = np.where(np.arange(clients + 1) <= number, own.offsets[0], own.offsets[1])
    return replace(own, offsets=offsets, declared=None)
