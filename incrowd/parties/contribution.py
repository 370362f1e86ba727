"""A party's part of a round: the contributions of its clients, or its records, clipped, in whole steps, and paid."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from incrowd._random import Randomness
from incrowd.algorithms.silos import Silo, clipped_sum, rehearse
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.engine import CohortEngine, EngineTrainer
from incrowd.learning.execution import with_threads
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.mean_query import VectorTrainer
from incrowd.learning.scoring import Scorer
from incrowd.parties.frames import PartyAnswer, Place, Request, SentWeights, sealed_answer
from incrowd.parties.guard import LedgerOwner
from incrowd.parties.offer import LAST, Offer, RoundTask, in_words_of_the_server
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import PerLayerClip, QuantileClip, ScalingClip, clip_rows, part_norms
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Cyclic
from incrowd.runs.round_loop import Checkpoints, DurableSilo

if TYPE_CHECKING:
    from incrowd.parties.participant import Participant


MOST_BATCH = 2**16
"""More records at once than these would take a silo's memory for nothing."""


def part(
    task: RoundTask,
    request: Request,
    *,
    place: Place,
    engine: CohortEngine,
    randomness: Randomness,
    receipt: Receipt | None,
) -> PartyAnswer:
    """Train the clients of a request, or have them score its weights, and add up what they contribute; a receipt pays
    for noise that is local.

    Guarantee: bit for bit what the engine adds up on one machine for the same clients, weights and randomness.
    """
    clip, noise = task.clip, task.noise
    total = ClippedSum(task.offer.size, clip, contributions_bound=task.members)
    cohort = trainer_of(task.offer, engine, request.weights, randomness=randomness).cohort(
        request.clients, round=task.round
    )
    if noise is None and isinstance(clip, ScalingClip) and task.plan.noise_by == "server":
        total.add_summed(clip, cohort)
    else:
        for chunk in cohort.chunks():
            for row, client in zip(chunk.rows(), chunk.clients, strict=True):
                if noise is None:
                    total.add(row[None])
                else:
                    hidden = partial(_hidden, noise, receipt=_paid(receipt), at=(task.round, client))
                    total.add_noised(clip, row, hidden)
    seen = total.observed
    return PartyAnswer(place=place, steps=total.close().on(task.step), unclipped=seen.unclipped, dropped=seen.dropped)


def trainer_of(
    offer: Offer, engine: CohortEngine, weights: SentWeights, *, randomness: Randomness
) -> EngineTrainer | VectorTrainer:
    """The trainer of an offer's clients, or the scorer of its weights."""
    if offer.scoring is None:
        return EngineTrainer(engine, weights, randomness=randomness)
    return Scorer(model=engine.model, data=engine.data, scoring=offer.scoring, loss=engine.loss).trainer(weights)


def _paid(receipt: Receipt | None) -> Receipt:
    if receipt is None:
        raise ConfigError(
            field="receipt", value=None, remedy="noise that is local has to be paid for: charge the round"
        )
    return receipt


def _hidden(noise: GaussianNoise, contribution: Whole, *, receipt: Receipt, at: tuple[int, int]) -> Whole:
    return noise.add(contribution, receipt=receipt, at=("noise", *at), contributions_bound=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnRecords:
    """The records of a silo for an offer: an engine on them.

    The owner states `stated`, the public number of records, and `classes`, the number of classes, once. An offer has to
    match both: a server could otherwise learn them from refusals.
    """

    engine: BatchedRecords = field(repr=False)
    stated: int
    classes: int | None
    threads: int = 1
    physical_batch: int = 256


class Contributor:
    """The work of a party for one offer: its training on its own data, and its payment for each round."""

    keeps = True
    """Whether its answer is final, and kept for the same question."""

    def __init__(self, party: "Participant", offer: Offer, plan: Plan, own: CohortEngine | OwnRecords) -> None:
        self.party = party
        self.offer = offer
        self.plan = plan
        self.own = own
        self.place = offer.parties.index(party.identity.name)
        what = "training" if offer.scoring is None else "evaluation"
        self.owner = LedgerOwner(plan=offer.fingerprint, guard=party.guard, what=what)
        self.check_own()

    @property
    def ready(self) -> bool:
        """Whether it has a part that waits for a list, and would be lost with it."""
        return False

    @property
    def third_party(self) -> str:
        """The code of other packages that trains here, in words."""
        return self.own.third_party if isinstance(self.own, CohortEngine) else self.own.engine.third_party

    @property
    def ledger(self) -> Ledger:
        """The party's own ledger, begun where there is none."""
        return self.party.guard.ledger(self.plan.relation)

    def check_own(self) -> None:
        """Refuse an offer for another kind of data than the party has."""

    def check(self) -> None:
        """Refuse an offer that could be paid for and not be done, before there is a ledger."""
        raise NotImplementedError

    def check_room(self) -> None:
        """Refuse a plan that the ledger has no room for; nothing is reserved."""
        self.ledger.check_room(self.plan.runs)

    def reserve(self) -> None:
        """Keep room on the ledger for the whole plan."""
        self.ledger.reserve(self.plan.runs, label=self.offer.fingerprint)

    def check_question(self, request: Request) -> None:
        """Refuse a question that is not of the plan."""
        raise NotImplementedError

    def admit(self, request: Request) -> None:
        """Refuse a new question that may not be paid for, before it is remembered."""

    def answer(self, request: Request) -> bytes:
        """Pay for the round, and compute the answer."""
        raise NotImplementedError

    def told(self, kind: str, place: Place, frame: bytes) -> bytes:
        """Answer keys, or a list, of a sum."""
        raise SpecificationRefused(f"a frame of the kind {kind!r}, and nothing is masked in this plan")


class ClientPart(Contributor):
    """A party that is protected as a whole, by the server's noise or its own."""

    own: CohortEngine

    def check(self) -> None:
        """See `Contributor.check`."""
        offer, engine, clip = self.offer, self.own, self.plan.config.clip
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
            task.expected(Place(plan=offer.fingerprint, round=0, party=""), contributions=1)
            engine.rehearse(np.zeros(size, np.float32))
            trainer_of(offer, engine, np.zeros(size, np.float32), randomness=self.party.randomness)
        except ConfigError as error:
            raise SpecificationRefused(f"an offer whose rounds cannot be done: {error}") from error

    def check_question(self, request: Request) -> None:
        """See `Contributor.check_question`."""
        sampler = self._task(request).plan.round(request.place.round).sampler
        if isinstance(sampler, Cyclic) and not sampler.has_turn(self.place, round=request.place.round):
            raise SpecificationRefused(f"round {request.place.round} is another party's turn in this plan")

    def admit(self, request: Request) -> None:
        """Refuse a round that costs more than the day has, or that the ledger has paid for and the memory has lost."""
        number, guard = request.place.round, self.party.guard
        charged = self.ledger.reservation(self.offer.fingerprint).charged
        if number >= charged:
            rounds = [(self.plan.round(each).event, 1) for each in range(charged, number + 1)]
            guard.daily(self.ledger).check(rounds)
        elif guard.memory.question(self.offer.fingerprint, number) is None:
            raise SpecificationRefused(
                f"round {number} was paid for, and what was asked in it is not known: the party's memory is lost, or "
                "an old copy"
            )

    def answer(self, request: Request) -> bytes:
        """See `Contributor.answer`."""
        task = self._task(request)
        found = self.computed(task, request, self._charge(task))
        records = self.offer.records
        expected = task.expected(found.place, contributions=records[self.place] if records else 1)
        return found.to_bytes(self.party.identity.key, wide=expected.wide)

    def computed(self, task: RoundTask, request: Request, receipt: Receipt | None) -> PartyAnswer:
        """The part of this party, with its own noise where that is local and the receipt pays for it."""
        found = part(
            task,
            replace(request, clients=(self.place,)),
            place=replace(request.place, party=self.party.identity.name),
            engine=self.own,
            randomness=self.party.randomness,
            receipt=receipt,
        )
        # A plan pays for the bit of an adaptive clip, and for no other count.
        return replace(found, unclipped=found.unclipped if isinstance(task.clip, QuantileClip) else 0, dropped=0)

    def _task(self, request: Request) -> RoundTask:
        try:
            return RoundTask.of(self.offer, request)
        except ConfigError as error:
            raise SpecificationRefused(f"a round that the plan does not know: {error}") from error

    def _charge(self, task: RoundTask) -> Receipt | None:
        """Pay for all rounds up to this one; the receipt of its own, where the party has noise to add."""
        ledger, label, randomness = self.ledger, self.offer.fingerprint, self.party.randomness
        charged = ledger.reservation(label).charged
        lost = task.round < charged  # in another life of this process, which ended before there was an answer
        if lost and task.noise is None:
            return None
        if lost and not randomness.simulated:
            raise SpecificationRefused(f"round {task.round} was paid for and lost: noise is not drawn twice for it")
        receipt = None
        for number in range(min(charged, task.round), task.round + 1):
            said = self.plan.round(number)
            own = number == task.round and task.noise is not None
            receipt = ledger.charge(
                said.event,
                pays_for=((task.noise, 1),) if own and task.noise is not None else (),
                randomness=randomness,
                key=f"{label}: round {number}",
                reservation=label,
                note={
                    "round": number,
                    "noise_multiplier": said.noise_multiplier,
                    **({"third_party": self.third_party} if self.third_party else {}),
                    **self.owner.note(ledger, self.plan, number),
                },
            )
        return receipt


class RecordPart(ClientPart):
    """A silo that sends the clipped sums of batches of its records to a server, which adds the noise."""

    own: OwnRecords  # type: ignore[assignment]  # which trains otherwise, and is asked and pays alike

    def check_own(self) -> None:
        """See `Contributor.check_own`."""
        check_records(self.offer, self.own, stated=self.offer.records[self.place] if self.offer.records else 0)

    def check(self) -> None:
        """See `Contributor.check`."""
        with in_words_of_the_server():
            training = replace(self.plan.training(self.offer.size), physical_batch=self.own.physical_batch)
            RoundTask.stated(self.offer, 0, self.plan.config.clip)
        with with_threads(self.own.threads):
            rehearse(self.party.identity.name, training, self.own.engine, np.zeros(self.offer.size))

    def computed(self, task: RoundTask, request: Request, receipt: Receipt | None) -> PartyAnswer:
        """The clipped sum of a fresh batch, in whole steps."""
        place = replace(request.place, party=self.party.identity.name)
        return PartyAnswer(place=place, steps=self.summed(request).steps, unclipped=0, dropped=0)

    def summed(self, request: Request) -> Whole:
        """The clipped sum of the round's batch, against the gradient."""
        training = self.plan.training(self.offer.size)
        batches = self.party.randomness.stream("batches", request.place.round, self.place)
        small = replace(training, physical_batch=self.own.physical_batch)
        with with_threads(self.own.threads):
            return clipped_sum(self.own.engine, request.weights, small, batches=batches)


class SiloPart(Contributor):
    """A silo that noises its own steps: all that leaves is noised already, and paid for.

    Edge cases: killed between charging and keeping an answer, the round is lost, and the answer to it says so; under
    seeded randomness it is repeated. A round that the plan's budget, the ledger, or the day has no room for is answered
    as one without the silo, and noted. After the last question there are no more rounds.
    """

    own: OwnRecords

    def __init__(self, party: "Participant", offer: Offer, plan: Plan, own: CohortEngine | OwnRecords) -> None:
        super().__init__(party, offer, plan, own)
        self._durable: DurableSilo | None = None

    @property
    def durable(self) -> DurableSilo:
        """The silo on its ledger."""
        if self._durable is None:
            name, own, label = self.party.identity.name, self.own, self.offer.fingerprint
            run = RecordRun(
                self.plan,
                ledger=self.ledger,
                randomness=self.party.randomness,
                label=label,
                place=self.place,
                owner=self.owner,
            )
            silo = Silo(
                name,
                run,
                engine=own.engine,
                threads=own.threads,
                physical_batch=own.physical_batch,
            )
            # The last answer alone: the others are in the memory, and this is for a crash before the last is there.
            sent = Checkpoints(self.party.folder / "offers" / label[:32] / "sent", keep=1)
            self._durable = DurableSilo(silo, sent)
        return self._durable

    def check_own(self) -> None:
        """See `Contributor.check_own`."""
        check_records(self.offer, self.own, stated=self.plan.config.members)

    def check(self) -> None:
        """See `Contributor.check`."""
        offer, plan, own = self.offer, self.plan, self.own
        plan.check_held(own.engine.held, silo=self.party.identity.name)
        try:
            training = replace(plan.training(offer.size), physical_batch=own.physical_batch)
        except ConfigError as error:
            raise SpecificationRefused(f"an offer whose rounds cannot be made: {error}") from error
        with with_threads(own.threads):
            rehearse(self.party.identity.name, training, own.engine, np.zeros(offer.size))

    def check_room(self) -> None:
        """See `Contributor.check_room`."""
        self.durable.silo.run.check_room()

    def reserve(self) -> None:
        """See `Contributor.reserve`."""
        self.durable.silo.run.reserve()

    def check_question(self, request: Request) -> None:
        """See `Contributor.check_question`."""
        number, last = request.place.round, self.offer.rounds
        if number > last or request.clip != (LAST if number == last else {}):
            raise SpecificationRefused("a round that the plan does not know")

    def answer(self, request: Request) -> bytes:
        """See `Contributor.answer`; to the last question, the claim."""
        weights, number = request.weights.astype(np.float64), request.place.round
        place = replace(request.place, party=self.party.identity.name)
        if not request.clip:
            answer = self.durable.answer(number, weights)
            if answer.absence is not None:
                self.party.guard.note(f"no part in round {number}: {answer.absence}", place.plan, number)
            return sealed_answer(answer, place, key=self.party.identity.key)
        silo = self.durable.silo
        silo.run.give_back()
        return self.party.sealed("statement", place, {"statement": silo.statement().to_json()})


def check_records(offer: Offer, own: OwnRecords, *, stated: int) -> None:
    """Refuse an offer for other records than a silo states, by what is stated alone."""
    if own.engine.size != offer.size:
        raise SpecificationRefused(
            f"the offer has {offer.size} weights, and the model that it describes {own.engine.size}"
        )
    if stated != own.stated:
        raise SpecificationRefused(f"a plan for {stated} records, and this silo states {own.stated}")
    if offer.classes != own.classes:
        raise SpecificationRefused(f"labels of {offer.classes} classes, and this silo states {own.classes}")
    if own.physical_batch > MOST_BATCH:
        raise SpecificationRefused(f"{own.physical_batch} records at once are more than {MOST_BATCH}")


def alone(own: ClientTensors, *, number: int, clients: int) -> ClientTensors:
    """The examples of one client, as client `number` of so many; the other clients have none here."""
    if own.present != 1 or not 0 <= number < clients:
        raise ConfigError(field="number", value=number, remedy=f"give the examples of one client, one of {clients}")
    offsets = np.where(np.arange(clients + 1) <= number, own.offsets[0], own.offsets[1])
    return replace(own, offsets=offsets, declared=None)
