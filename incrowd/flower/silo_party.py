"""A real silo: it learns from its own records and noises for itself, on a ledger that is its owner's."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import numpy as np

from incrowd._random import Randomness, SystemRandomness
from incrowd.algorithms.counts import Counter
from incrowd.algorithms.rehearsal import rehearse
from incrowd.algorithms.silos import Silo
from incrowd.errors import ConfigError, DataError, IncrowdError, SpecificationRefused
from incrowd.flower.brake import Brake, Identity
from incrowd.flower.offer import Offered, OfferKind
from incrowd.flower.policy import PartyPolicy
from incrowd.flower.silo_account import LedgerOwner
from incrowd.flower.silo_offer import FORMAT, LAST, SiloOffer
from incrowd.flower.silos import sealed_answer
from incrowd.flower.wire import Place, Request, sealed
from incrowd.learning.arithmetic import with_threads
from incrowd.learning.dpsgd.records import RecordEngine
from incrowd.privacy.daily import utc_today
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.records import RecordRun
from incrowd.runs.outbox import Checkpoints, DurableSilo

MOST_STEPS, MOST_BATCH = 100_000, 2**16
"""More steps a round, and more records at once, than these would take a party's time and memory for nothing."""

_SILOS = 2  # whose engines are kept from round to round
_KINDS: tuple[OfferKind, ...] = ("offer", "trial")


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnRecords:
    """What a silo learns from for an offer: an engine on its own records, and what counts them where a plan asks.

    `stated` is the public number of records, and `classes` that of their labels, which the owner states once: an offer
    has to be for these. Whether another would fit what is there tells of it, and a server could ask until it knows how
    many records there are, or whether there is one of the last class.
    """

    engine: RecordEngine = field(repr=False)
    stated: int
    classes: int | None
    counter: Counter | None = field(repr=False, default=None)
    threads: int = 1
    physical_batch: int = 256


SiloLearner = Callable[[SiloOffer], OwnRecords]
"""Makes what learns for an offer. What is wrong with the silo's table is said here, by the column."""


class SiloParty:
    """What answers a server in a silo's name, on a ledger of its own, in a folder.

    A server offers the plans of all silos once, asks for their rounds, and at the end for what the silo may claim and
    its report. All that leaves is noised already, and paid for.

    Guarantee: as `incrowd.algorithms.Silo` and `Brake`. All plans of all servers are charged to one ledger, whose
    budget is the policy's, and each to its own budget besides. Before an offer is accepted, and anything spent, made-up
    records have gone the whole way. An answer is on the disk before it is given; asked the same again, the silo gives
    the same bytes and charges nothing. What is not the plan's next question, not signed by the server, or not allowed
    by the policy, is refused, and noted. No code of the server's is run.

    Edge cases: killed between charging and keeping an answer, the round is lost, and the answer to it says so; under
    seeded randomness it is repeated. A round that the plan's budget, the ledger, or the day has no room for is answered
    as one without the silo, and noted. After the last question there are no more rounds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        identity: Identity,
        policy: PartyPolicy,
        learner: SiloLearner,
        randomness: Randomness | None = None,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.policy = policy
        self._learner = learner
        self._randomness = randomness or SystemRandomness()
        self._brake = Brake(folder, identity=identity, policy=policy, unit="record", today=today)
        self._memory = self._brake.memory
        self._offers: dict[str, SiloOffer] = {}
        self._silos: dict[str, DurableSilo] = {}

    def close(self) -> None:
        """Let go of the files."""
        self._brake.close()

    def check_ledger(self) -> None:
        """See that a ledger which was begun is there and is what is stated now: see `Brake.check_ledger`."""
        self._brake.check_ledger()

    def reply(self, frame: object) -> bytes:
        """What the silo says to an offer, a trial of one, or a request. Edge cases: as `accept` and `answer`."""
        for kind in _KINDS:
            try:
                offered = Offered.read(frame, key=self.identity.server, kind=kind)
            except DataError:
                continue
            return self._accepted(offered, frame, kind)
        return self.answer(frame)

    def accept(self, frame: object) -> bytes:
        """Take part in the plans that a server offers, if the policy allows it; again, if it was accepted before.

        Edge cases: what the server has not signed: `DataError`; what the policy does not allow: `SpecificationRefused`;
        a plan that the ledger has no room for: `BudgetExceeded`; records that do not fit it: as learner and plan say.
        """
        return self._accepted(Offered.read(frame, key=self.identity.server), frame)

    def answer(self, frame: object) -> bytes:
        """The silo's answer to a round, or to the last question.

        Edge cases: what the server has not signed: `DataError`; another plan, another question in a round that was
        asked for, a round before it, less noise than the policy asks for: `SpecificationRefused`; a report that the day
        has no room for: `NotToday`.
        """
        request = Request.read(frame, key=self.identity.server, most=self.policy.most_weights)
        plan, number = request.place.plan, request.place.round
        with self._brake.turn, self._brake.noting(plan, number, IncrowdError):
            offer = self._asked(request)
            kept = self._brake.kept(request)
            if kept is not None:
                return kept
            self._brake.take_up(request)
            answer = self._last if request.clip else self._round
            found = answer(offer, request)
            self._memory.keep(plan, number, found)
            return found

    def _round(self, offer: SiloOffer, request: Request) -> bytes:
        number, place = request.place.round, self._place(request)
        answer = self._silo(offer).answer(number, request.weights.astype(np.float64))
        if answer.absence is not None:
            self._brake.note(f"no part in round {number}: {answer.absence}", place.plan, number)
        return sealed_answer(answer, place, key=self.identity.key)

    def _last(self, offer: SiloOffer, request: Request) -> bytes:
        """What the silo may claim, and its report."""
        durable, weights, table = self._silo(offer), request.weights.astype(np.float64), None
        if durable.silo.run.plan.config.report_std is not None and offer.classes is not None:
            table = durable.report(weights, classes=offer.classes)
        head = {"statement": durable.silo.statement().to_json()}
        body = b"" if table is None else table.astype("<f8").tobytes()
        durable.silo.run.give_back()
        return sealed("statement", self._place(request), head, body, key=self.identity.key)

    def _accepted(self, offered: Offered, frame: object, kind: OfferKind = "offer") -> bytes:
        """Take an offer up, or see whether it would be, where it is a trial."""
        identity, name = self.identity, self.identity.name
        with self._brake.turn, self._brake.noting(offered.plan, None, IncrowdError):
            if offered.form.get("format") != FORMAT:
                raise SpecificationRefused(
                    'an offer of another kind: this party takes part as a silo (unit = "record")'
                )
            offer = offered.made(SiloOffer.from_json)
            if name not in offer.parties:
                raise SpecificationRefused(f"the offer names no party {name}")
            if self._memory.offer(offer.fingerprint) is None:
                self._look(offer)
                plan = offer.plan(name)
                self._check(offer, plan)
                self._brake.check_offers(frame)
                own = self._learner(offer)
                self._check_records(offer, plan, own)
                run = self._durable(offer, own).silo.run
                self._owner(offer).check(plan, run.ledger)
                run.check_room()
                if kind == "offer":
                    run.reserve()
                    assert isinstance(frame, bytes)  # noqa: S101 - it was read
                    self._memory.accept(offer.fingerprint, server=identity.server_name, offer=frame)
        place = Place(plan=offer.fingerprint, round=0, party=name)
        return sealed("acceptance", place, {}, b"", key=identity.key)

    def _look(self, offer: SiloOffer) -> None:
        """Refuse what is more than the policy allows, before it is priced: a plan of many steps takes time."""
        policy, form = self.policy, offer.plans[self.identity.name]
        policy.look({"plan": form, "size": offer.size})
        steps = form.get("steps")
        for what, value, most in (
            ("rounds", offer.rounds, policy.most_rounds),
            ("numbers of a report", offer.cells, policy.most_weights),
            ("steps a round", steps, MOST_STEPS),
        ):
            if not isinstance(value, int) or value > most:
                raise SpecificationRefused(f"{value} {what} are more than this party allows, {most}")

    def _check(self, offer: SiloOffer, plan: Plan) -> None:
        """Refuse what the policy does not allow, before any of it is worked on."""
        policy, training = self.policy, plan.training()
        epochs = (training.steps - 0.5) * training.sampling_prob  # as few as come to so many whole steps
        if epochs > policy.most_epochs:
            raise SpecificationRefused(f"{epochs:g} epochs are more than this party allows, {policy.most_epochs}")
        policy.check_model(offer.columns, offer.model)
        if (noise := plan.config.report_noise) is not None:  # it says how right a model is on the records
            policy.check_scored("a report", noise.noise_multiplier)
        if training.noise_multiplier < policy.least_noise:
            raise SpecificationRefused(
                f"a noise multiplier of {training.noise_multiplier:.6g} is less than this party asks for, "
                f"{policy.least_noise:g}"
            )

    def _check_records(self, offer: SiloOffer, plan: Plan, own: OwnRecords) -> None:
        """Refuse what could be paid for and not be done, before there is a ledger."""
        if own.engine.size != offer.size:
            raise SpecificationRefused(
                f"the offer has {offer.size} weights, and the model that it describes {own.engine.size}"
            )
        if plan.config.members != own.stated:
            raise SpecificationRefused(f"a plan for {plan.config.members} records, and this silo states {own.stated}")
        if offer.classes != own.classes:
            raise SpecificationRefused(f"labels of {offer.classes} classes, and this silo states {own.classes}")
        if own.physical_batch > MOST_BATCH:
            raise SpecificationRefused(f"{own.physical_batch} records at once are more than {MOST_BATCH}")
        plan.check_held(own.engine.held, silo=self.identity.name)
        try:
            training = replace(plan.training(offer.size), physical_batch=own.physical_batch)
            plan.check_report(offer.cells)
        except ConfigError as error:
            raise SpecificationRefused(f"an offer whose rounds, or report, cannot be made: {error}") from error
        counter = None if plan.config.report_std is None else own.counter
        with with_threads(own.threads):
            rehearse(self.identity.name, training, own.engine, counter, np.zeros(offer.size))

    def _asked(self, request: Request) -> SiloOffer:
        """The offer that a question belongs to."""
        place = request.place
        offer = self._offer(place.plan)
        if offer is None:
            raise SpecificationRefused("a round of a plan that this silo has not accepted")
        if request.clients or request.weights.size != offer.size:
            raise SpecificationRefused("a question that is not for this silo and this model")
        if request.clip != (LAST if place.round == offer.rounds else {}) or place.round > offer.rounds:
            raise SpecificationRefused("a round that the plan does not know")
        self._look(offer)  # the policy may be stricter by now
        self._check(offer, offer.plan(self.identity.name))
        return offer

    def _offer(self, plan: str) -> SiloOffer | None:
        if plan not in self._offers:
            frame = self._memory.offer(plan)
            if frame is None:
                return None
            self._offers[plan] = Offered.read(frame, key=self.identity.server).made(SiloOffer.from_json)
        return self._offers[plan]

    def _silo(self, offer: SiloOffer) -> DurableSilo:
        """The silo on its ledger, for as long as it is asked."""
        label = offer.fingerprint
        if label not in self._silos:
            while len(self._silos) >= _SILOS:
                del self._silos[next(iter(self._silos))]
            self._silos[label] = self._durable(offer, self._learner(offer))
        return self._silos[label]

    def _durable(self, offer: SiloOffer, own: OwnRecords) -> DurableSilo:
        label, plan = offer.fingerprint, offer.plan(self.identity.name)
        run = RecordRun(
            plan,
            ledger=self._brake.ledger(plan.relation),
            randomness=self._randomness,
            label=label,
            place=offer.parties.index(self.identity.name),
            owner=self._owner(offer),
        )
        silo = Silo(
            self.identity.name,
            run,
            engine=own.engine,
            counter=own.counter,
            threads=own.threads,
            physical_batch=own.physical_batch,
        )
        sent = self.folder / "offers" / label[:32] / "sent"
        # The last answer alone: what was sent is in the memory, and this is for who is killed before it is there.
        return DurableSilo(silo, Checkpoints(sent, keep=1))

    def _owner(self, offer: SiloOffer) -> LedgerOwner:
        return LedgerOwner(plan=offer.fingerprint, brake=self._brake)

    def _place(self, request: Request) -> Place:
        return Place(plan=request.place.plan, round=request.place.round, party=self.identity.name)
