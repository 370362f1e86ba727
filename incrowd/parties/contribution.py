"""A party's part of a round: the contributions of its clients, or its records, clipped, in whole steps, and paid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
from dp_accounting import DpEvent

from incrowd._random import Floats, Randomness
from incrowd.algorithms.silos import Silo, clipped_sum, rehearse
from incrowd.errors import ConfigError, DataError, SpecificationRefused
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.engine import CohortEngine, EngineTrainer
from incrowd.learning.execution import with_threads
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.mean_query import VectorTrainer
from incrowd.learning.scoring import Scorer
from incrowd.parties.frames import Frame, PartyAnswer, Place, Request, SentWeights, sealed_answer
from incrowd.parties.guard import Guard
from incrowd.parties.offer import LAST, Offer, RoundTask, in_words_of_the_server
from incrowd.parties.secure_sum import Member, SumPlan, sum_plan
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipped_sum import Part as SumPart
from incrowd.privacy.mechanism.clipping import PerLayerClip, QuantileClip, ScalingClip, clip_rows
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.paid import Note, RecordRun, ShareRun
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Cyclic
from incrowd.runs.round_loop import Checkpoints, DurableSilo

SUMS = "sums"
"""The subfolder of a party's folder with the keys of its sums."""

MOST_BATCH = 2**16
"""More records at once than these would take a silo's memory for nothing."""


def part(
    task: RoundTask,
    weights: Floats | SentWeights,
    clients: Sequence[int],
    *,
    engine: CohortEngine,
    randomness: Randomness,
    receipt: Receipt | None,
) -> SumPart:
    """Train clients from these weights, or have them score these, and add up what they contribute; a receipt pays for
    noise that is local.

    Guarantee: bit for bit what the engine adds up on one machine for the same clients, weights and randomness.
    """
    clip, noise = task.clip, task.noise
    total = ClippedSum(task.offer.size, clip, contributions_bound=task.members)
    sent = weights.astype(np.float32)
    cohort = trainer_of(task.offer, engine, sent, randomness=randomness).cohort(clients, round=task.round)
    if noise is None and isinstance(clip, ScalingClip) and task.plan.noise_by == "server":
        total.add_summed(clip, cohort)
    else:
        for chunk in cohort.chunks():
            for row, client in zip(chunk.rows(), chunk.clients, strict=True):
                if noise is None:
                    total.add(row[None])
                elif receipt is None:
                    raise ConfigError(field="receipt", value=None, remedy="local noise is paid for: charge the round")
                else:
                    at = "noise", task.round, client
                    total.add_noised(clip, row, partial(noise.add, receipt=receipt, at=at, contributions_bound=1))
    whole = Whole(steps=total.close().on(task.step), step=task.step)
    return SumPart(total=whole, observed=total.observed)


def trainer_of(
    offer: Offer, engine: CohortEngine, weights: SentWeights, *, randomness: Randomness
) -> EngineTrainer | VectorTrainer:
    """The trainer of an offer's clients, or the scorer of its weights."""
    if offer.scoring is None:
        return EngineTrainer(engine, weights, randomness=randomness)
    return Scorer(model=engine.model, data=engine.data, scoring=offer.scoring, loss=engine.loss).trainer(weights)


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

    def check(self, offer: Offer, *, stated: int) -> None:
        """Refuse an offer for other records than the owner states."""
        size = self.engine.size
        if size != offer.size:
            raise SpecificationRefused(f"the offer has {offer.size} weights, and the model that it describes {size}")
        if stated != self.stated:
            raise SpecificationRefused(f"a plan for {stated} records, and this silo states {self.stated}")
        if offer.classes != self.classes:
            raise SpecificationRefused(f"labels of {offer.classes} classes, and this silo states {self.classes}")
        if self.physical_batch > MOST_BATCH:
            raise SpecificationRefused(f"{self.physical_batch} records at once are more than {MOST_BATCH}")


class Part:
    """A party's work for one offer: its training on its own data, and its payment for each round.

    It is the owner of the charges, too: see `incrowd.privacy.paid.Owner`.

    Guarantee: an offer is refused by what the owner states alone, and tried on synthetic examples before a ledger is
    begun. A round is on the ledger before any noise is drawn and any part of it leaves.
    """

    keeps: ClassVar[bool] = True
    """Whether its answer is final, and kept for the same question."""

    def __init__(
        self, guard: Guard, offer: Offer, plan: Plan, own: CohortEngine | OwnRecords, randomness: Randomness
    ) -> None:
        self.guard = guard
        self.offer = offer
        self.plan = plan
        self.own = own
        self.randomness = randomness
        self.name = guard.identity.name
        self.label = offer.fingerprint
        self.place = offer.parties.index(self.name)
        if isinstance(own, OwnRecords):
            own.check(offer, stated=offer.declared(self.name, plan))
        self.third_party = own.third_party if isinstance(own, CohortEngine) else own.engine.third_party

    @property
    def ready(self) -> bool:
        """Whether it has a part that waits for a list, and would be lost with it."""
        return False

    @property
    def ledger(self) -> Ledger:
        """The party's own ledger, begun where there is none."""
        return self.guard.ledger(self.plan.relation)

    def admit(self, ledger: Ledger, event: DpEvent) -> None:
        """See `Owner.admit`."""
        self.guard.check_day(ledger, [(event, 1)])

    def note(self, ledger: Ledger, plan: Plan, number: int) -> Note:
        """See `Owner.note`."""
        what = "training" if self.offer.scoring is None else "evaluation"
        server = self.guard.identity.server_name
        return {"plan": self.label, "what": what, "server": server, "day": self.guard.day(ledger)}

    def check(self) -> None:
        """Refuse an offer that could be paid for and not be done, before there is a ledger."""
        if isinstance(self.own, OwnRecords):
            return self._rehearse(self.own)
        offer, engine, clip = self.offer, self.own, self.plan.config.clip
        size, parts = engine.size, engine.parts
        if size != offer.weights:
            raise SpecificationRefused(f"the offer has {offer.weights} weights, and the model that it describes {size}")
        if isinstance(clip, PerLayerClip) and clip.parts != parts:
            raise SpecificationRefused(f"the clip is for layers of {clip.parts} weights, the model's are {parts}")
        with in_words_of_the_server("an offer whose rounds cannot be done: "):
            task = RoundTask.stated(offer, 0, clip)
            clip_rows(task.clip, np.zeros((1, offer.size)))
            task.expected(Place(plan=self.label), contributions=1)
            engine.rehearse(np.zeros(size, np.float32))
            trainer_of(offer, engine, np.zeros(size, np.float32), randomness=self.randomness)
        return None

    def _rehearse(self, own: OwnRecords) -> None:
        if not self.offer.together:
            self.plan.check_held(own.engine.held, silo=self.name)
        with in_words_of_the_server("an offer whose rounds cannot be done: "):
            training = replace(self.plan.training(self.offer.size), physical_batch=own.physical_batch)
            if self.offer.together:
                RoundTask.stated(self.offer, 0, self.plan.config.clip)
        with with_threads(own.threads):
            rehearse(self.name, training, own.engine, np.zeros(self.offer.size))

    def check_room(self) -> None:
        """Refuse a plan that the ledger has no room for; nothing is reserved."""
        if all(each.label != self.label for each in self.ledger.reservations()):
            self.ledger.check_room(self.plan.runs)

    def reserve(self) -> None:
        """Keep room on the ledger for the whole plan."""
        self.ledger.reserve(self.plan.runs, label=self.label)

    def check_question(self, request: Request) -> None:
        """Refuse a question that is not of the plan."""
        sampler = self.task(request).plan.round(request.place.round).sampler
        if isinstance(sampler, Cyclic) and not sampler.has_turn(self.place, round=request.place.round):
            raise SpecificationRefused(f"round {request.place.round} is another party's turn in this plan")

    def check_new(self, request: Request) -> None:
        """Refuse a round that costs more than the day has, or that the ledger has paid for and the memory has lost."""
        number = request.place.round
        charged = self.ledger.reservation(self.label).charged
        if number >= charged:
            self.guard.check_day(self.ledger, [(self.plan.round(each).event, 1) for each in range(charged, number + 1)])
        elif self.guard.asked(self.label, number) is None:
            raise SpecificationRefused(
                f"round {number} was paid for, and what was asked in it is not known: the party's memory is lost, or "
                "an old copy"
            )

    def answer(self, request: Request) -> bytes:
        """Pay for the round, and compute the answer."""
        task = self.task(request)
        found = self.computed(task, request, self._charge(task))
        records = self.offer.records
        expected = task.expected(found.place, contributions=records[self.place] if records else 1)
        return found.to_bytes(self.guard.identity.key, wide=expected.wide)

    def computed(self, task: RoundTask, request: Request, receipt: Receipt | None) -> PartyAnswer:
        """The part of this party. A receipt pays for its own noise, where that is local. A part of records is the
        clipped sum of a fresh batch, against the gradient.
        """
        place = replace(request.place, party=self.name)
        if isinstance(self.own, OwnRecords):
            training = replace(self.plan.training(self.offer.size), physical_batch=self.own.physical_batch)
            batches = self.randomness.stream("batches", request.place.round, self.place)
            with with_threads(self.own.threads):
                summed = clipped_sum(self.own.engine, request.weights, training, batches=batches)
            return PartyAnswer(place=place, steps=summed.steps, unclipped=0)
        clients, randomness = [self.place], self.randomness
        found = part(task, request.weights, clients, engine=self.own, randomness=randomness, receipt=receipt)
        # A plan pays for the bit of an adaptive clip, and for no other count.
        unclipped = found.observed.unclipped if isinstance(task.clip, QuantileClip) else 0
        return PartyAnswer(place=place, steps=found.total.steps, unclipped=unclipped)

    def task(self, request: Request) -> RoundTask:
        """The round of a question, as the plan has it."""
        with in_words_of_the_server("a round that the plan does not know: "):
            return RoundTask.of(self.offer, request)

    def _charge(self, task: RoundTask) -> Receipt | None:
        """Pay for all rounds up to this one; the receipt of its own, where the party has noise to add."""
        ledger = self.ledger
        charged = ledger.reservation(self.label).charged
        lost = task.round < charged  # in another life of this process, which ended before there was an answer
        if lost and task.noise is None:
            return None
        if lost and not self.randomness.simulated:
            raise SpecificationRefused(f"round {task.round} was paid for and lost: noise is not drawn twice for it")
        receipt = None
        for number in range(min(charged, task.round), task.round + 1):
            said = self.plan.round(number)
            noise = {"round": number, "noise_multiplier": said.noise_multiplier}
            code = {"third_party": self.third_party} if self.third_party else {}
            receipt = ledger.charge(
                said.event,
                pays_for=((task.noise, 1),) if number == task.round and task.noise is not None else (),
                randomness=self.randomness,
                key=f"{self.label}: round {number}",
                reservation=self.label,
                note={**noise, **code, **self.note(ledger, self.plan, number)},
            )
        return receipt

    def told(self, frame: Frame, data: bytes) -> bytes:
        """Answer keys, or a list, of a sum."""
        raise SpecificationRefused(f"a frame of the kind {frame.kind!r}, and nothing is masked in this plan")


class SiloPart(Part):
    """A silo that noises its own steps: all that leaves is noised already, and paid for.

    Edge cases: killed between charging and keeping an answer, the round is lost, and the answer to it says so; under
    seeded randomness it is repeated. A round that the plan's budget, the ledger, or the day has no room for is answered
    as one without the silo, and noted. After the last question there are no more rounds.
    """

    own: OwnRecords

    @cached_property
    def durable(self) -> DurableSilo:
        """The silo on its ledger."""
        own = self.own
        terms: dict[str, Any] = {"ledger": self.ledger, "randomness": self.randomness, "owner": self}
        run = RecordRun(self.plan, label=self.label, place=self.place, **terms)
        silo = Silo(self.name, run, engine=own.engine, threads=own.threads, physical_batch=own.physical_batch)
        # The last answer alone: the others are in the memory, and this is for a crash before the last is there.
        return DurableSilo(silo, Checkpoints(self.guard.folder / "offers" / self.label[:32] / "sent", keep=1))

    def check_question(self, request: Request) -> None:
        """See `Part.check_question`."""
        number, last = request.place.round, self.offer.rounds
        if number > last or request.clip != (LAST if number == last else {}):
            raise SpecificationRefused("a round that the plan does not know")

    def check_new(self, request: Request) -> None:
        """Nothing: the answer says that there is no room."""

    def answer(self, request: Request) -> bytes:
        """See `Part.answer`; to the last question, the claim."""
        place, identity = replace(request.place, party=self.name), self.guard.identity
        if request.clip:
            silo = self.durable.silo
            silo.run.give_back()
            return identity.sealed("statement", place, {"statement": silo.statement().to_json()})
        answer = self.durable.answer(place.round, request.weights.astype(np.float64))
        if answer.absence is not None:
            self.guard.note(f"no part in round {place.round}: {answer.absence}", place.plan, place.round)
        return sealed_answer(answer, place, key=identity.key)


class MaskedPart(Part):
    """A party that masks its part: it answers a question with `ready`, and a list with the part itself.

    Guarantee: the roster of the offer is the one that the owner has compared. The party computes its part before it
    pays. The charge follows the list, which sets the noise of a share.
    """

    keeps = False
    _ready: tuple[int, str, Whole, bytes] | None = None

    @property
    def ready(self) -> bool:
        """See `Part.ready`."""
        return self._ready is not None

    @cached_property
    def member(self) -> Member:
        """The party's side of the sum, with its keys on disk."""
        identity = self.guard.identity
        return Member(
            self.guard.folder / SUMS / self.label[:32],
            sum_plan(self.plan, self.offer),
            name=self.name,
            key=identity.key,
            server=identity.server,
            least_colluders=self.guard.policy.least_colluders,
        )

    def check_new(self, request: Request) -> None:
        """Refuse a round that exceeds the day, before any computation."""
        self.admit(self.ledger, self.plan.round(request.place.round).event)

    def answer(self, request: Request) -> bytes:
        """Compute the part, and answer `ready`, before any payment."""
        number, digest = request.place.round, request.digest
        if self._ready is None or self._ready[:2] != (number, digest):
            task = self.task(request)
            whole = Whole(steps=self.computed(task, request, None).steps, step=task.step)
            self._ready = number, digest, whole, self.member.ready(number, digest)
        return self._ready[3]

    def told(self, frame: Frame, data: bytes) -> bytes:
        """Agree on keys, or pay for the round of a list and send the masked part."""
        member, number = self.member, frame.place.round
        if frame.kind == "list":
            terms: dict[str, Any] = {"ledger": self.ledger, "randomness": self.randomness, "owner": self}
            run = ShareRun(self.plan, label=self.label, **terms)
            run.name_third_party(self.third_party)
            part = None if self._ready is None else self._ready[2]
            answer = member.answer(data, part, pay=partial(run.share, number))
            if self._ready is not None and self._ready[0] == number:
                self._ready = None  # a list of a round before may come again
            return answer
        hellos, hidden = bundled(member.plan, frame)
        if number == 0:
            return member.hello()
        if number == 1:
            return member.seal(hellos)
        member.agree(hellos, hidden)
        return member.zeros()


def bundled(plan: SumPlan, frame: Frame) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """The hellos and the sealed secrets of all parties that a stage of the agreement has."""
    sizes, names, stage = frame.head.get("sizes"), plan.roster.names, frame.place.round
    if not isinstance(sizes, list) or stage > 2 or len(sizes) != stage * len(names):
        raise DataError("keys that are not of all parties of the roster")
    if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) != len(frame.body):
        raise DataError("keys that are not as long as they say")
    pieces = [bytes(frame.body[start:end]) for start, end in pairwise(accumulate(sizes, initial=0))]
    return dict(zip(names, pieces, strict=False)), dict(zip(names, pieces[len(names) :], strict=False))


def alone(own: ClientTensors, *, number: int, clients: int) -> ClientTensors:
    """The examples of one client, as client `number` of so many; the other clients have none here."""
    if own.present != 1 or not 0 <= number < clients:
        raise ConfigError(field="number", value=number, remedy=f"give the examples of one client, one of {clients}")
    offsets = np.where(np.arange(clients + 1) <= number, own.offsets[0], own.offsets[1])
    return replace(own, offsets=offsets, declared=None)
