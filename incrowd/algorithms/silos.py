"""A federation's silos: each learns from its records with DP-SGD and pays from its own ledger.

A silo sends released numbers, so averaging them costs nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, Randomness, SeededRandomness, Stream
from incrowd.algorithms.fedavg import Answers, SiloStatus, State
from incrowd.errors import BudgetExceeded, ConfigError, NotToday, RehearsalFailed
from incrowd.learning.dpsgd.engine import BatchedRecords, on_tensors
from incrowd.learning.execution import with_threads
from incrowd.learning.models import Model
from incrowd.learning.modules import own_turn
from incrowd.privacy.mechanism.grid import RecordTraining, Whole
from incrowd.privacy.paid import RecordRound, RecordRun
from incrowd.privacy.plan.sampling import check_declared
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import Statement

Absence = Literal["budget spent", "round lost", "daily limit", "no answer", "refused"]
"""The reason for an answer without an update: the silo could not pay, paid and crashed, or reached the day's limit; or
the server received no answer in time, or a wrong one.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A silo's answer to one round, all of it released and public.

    `epsilon` is the price of all releases from the silo's ledger together. Without an `update` nothing was released,
    and `absence` gives the reason.
    """

    silo: str
    round: int
    epsilon: float
    update: Floats | None = None
    absence: Absence | None = None


Ask = Callable[[int, Floats], Answer]
"""Asks one silo for a round, counted from 0, that starts from some weights: see `Silo.answer`."""

AskAll = Callable[[int, Floats], Sequence[Answer]]
"""Asks all silos for a round; the answers are in the silos' order."""

AskShared = Callable[[int, Floats], tuple[int, Callable[[], Whole]]]
"""Asks all silos for a masked sum of a round: the number of those that are listed, and a way to their noised sum."""

AskSums = Callable[[int, Floats, Callable[[int], Stream]], Mapping[int, Whole]]
"""Asks all silos for the clipped sums of a round; those that came are by the silos' places. The last is for simulated
silos: the random bits by which a place draws its batch.
"""


@dataclass(kw_only=True, eq=False)
class SiloCohort:
    """Silos that answer one after the other, or all `together`.

    The mean is over the silos that sent an update; each counts the same.

    Guarantee: a silo that has to stop does not stop the others. If no silo sends an update, the weights stay.
    """

    asks: Sequence[Ask]
    model: Model
    rounds: int
    randomness: Randomness
    together: AskAll | None = None
    size: int = field(init=False)
    private: None = field(default=None, init=False)
    queries: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.size = self.model.size
        _validate.count(rounds=self.rounds)
        if self.together is None:
            _validate.count(silos=len(self.asks))

    def answers(self, state: State) -> Answers:
        """See `Cohort.answers`."""
        number, start = state.round, state.weights
        answers = [ask(number, start) for ask in self.asks] if self.together is None else self.together(number, start)
        return self.combined(state, answers)

    def combined(self, state: State, answers: Sequence[Answer]) -> Answers:
        """The mean of the silos' answers."""
        silos = tuple(SiloStatus(silo=one.silo, epsilon=one.epsilon, absence=one.absence) for one in answers)
        return Answers(mean=self._mean(answers), carry=state.carry, silos=silos)

    def _mean(self, answers: Sequence[Answer]) -> Floats | None:
        sent = [answer.update for answer in answers if answer.update is not None]
        return np.sum([update / len(sent) for update in sent], axis=0) if sent else None


@dataclass(kw_only=True, eq=False)
class RecordCohort:
    """Silos whose records one plan protects together: federated SGD over records, whose server adds the noise.

    A round is one step. Each silo draws a batch, clips the gradients and sends their sum; the server moves against the
    noised mean. There is an engine for each silo, and its declared number of records; or `sums` asks silos elsewhere,
    and a silo that does not answer counts as zero; or `shared` asks for the masked sum of silos that share the noise.
    """

    engines: Sequence[BatchedRecords]
    records: Sequence[int]
    private: PrivateRun
    model: Model
    threads: int = 1
    sums: AskSums | None = None
    shared: AskShared | None = None
    rounds: int = field(init=False)
    randomness: Randomness = field(init=False, repr=False)
    size: int = field(init=False)
    queries: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _validate.count(threads=self.threads, silos=len(self.records))
        plan = self.private.plan
        if sum(self.records) != plan.config.members:
            remedy = f"all silos together declare {sum(self.records)} records: plan for as many"
            raise ConfigError(field="members", value=plan.config.members, remedy=remedy)
        if plan.noise_by == "parties" and plan.config.parties != len(self.records):
            remedy = f"{len(self.records)} silos share the noise: plan for as many"
            raise ConfigError(field="parties", value=plan.config.parties, remedy=remedy)
        for place, (engine, declared) in enumerate(zip(self.engines, self.records, strict=self.engines != ()), start=1):
            check_declared(declared, held=engine.held, field="records", what=f"the records of silo {place}")
            self.private.name_third_party(engine.third_party)
        self.size = self.model.size
        self.rounds, self.randomness = plan.rounds, self.private.randomness

    def answers(self, state: State) -> Answers:
        """See `Cohort.answers`."""
        begin = time.perf_counter()
        opened, training = self.private.round(state.round, carry=state.carry), self.private.plan.training()
        if self.shared is not None:
            opened.add_shared(*self.shared(state.round, state.weights))
        elif self.private.plan.noise_by == "parties":
            opened.listing(len(self.engines))
        if self.sums is not None:
            for place, part in self.sums(state.round, state.weights, opened.batches).items():
                opened.add_records(part, silo=place, records=self.records[place])
        for place, engine in enumerate(self.engines if self.sums is None else ()):
            with with_threads(self.threads):
                part = clipped_sum(engine, state.weights, training, batches=opened.batches(place))
            opened.add_records(part, silo=place, records=self.records[place])
        seconds = time.perf_counter() - begin
        release = opened.release()
        return Answers(mean=release.mean, carry=opened.after, release=release, seconds=seconds)


def clipped_sum(
    engine: BatchedRecords, weights: Floats | NDArray[np.float32], training: RecordTraining, *, batches: Stream
) -> Whole:
    """The clipped sum of one batch of a silo's records, against their gradients."""
    return training.whole(-engine.clipped_sum(weights.astype(np.float32), training, batches=batches).numpy())


STEPS = 2
"""The second step differs from the first: it has a velocity, and reuses memory."""


def rehearse(silo: str, training: RecordTraining, engine: BatchedRecords, weights: Floats) -> None:
    """Train on no record, on one, and on a full physical batch plus one, all synthetic: a silo's whole path.

    Guarantee: it reads no record of the silo, asks no ledger and draws from no stream of a run, so a failure reveals
    nothing and costs nothing. torch's global generator keeps its state.
    """
    batch = min(training.most_records, training.physical_batch + 1)
    for records in sorted({0, 1, batch}):
        forked = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
        with _Trying(silo, records), own_turn(), forked:
            _go(training, engine.rehearsal(records), weights)


@dataclass(frozen=True)
class _Trying:
    """Turns every error of a third-party module into one that names the attempt."""

    name: str
    records: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            what = {0: "a step without records", 1: "one made-up record"}
            raise RehearsalFailed(
                f"{self.name} tried {what.get(self.records, f'{self.records} made-up records')}, and failed with "
                f"{type(error).__name__}: {error}. Nothing was spent and no record was touched: repair the model, or "
                "what goes with it, and begin again"
            ) from error


def _go(planned: RecordTraining, engine: BatchedRecords, weights: Floats) -> None:
    """Train, and compute the update."""
    training = replace(planned, steps=STEPS, sampling_prob=1.0, noise_multiplier=1.0)
    stream, hidden = SeededRandomness(seed=0).stream("rehearsal"), []

    def noised(total: Floats) -> Floats:
        """Add public noise of about the size of the real noise."""
        hidden.append(total.size)
        return np.asarray(total + training.noise_multiplier * training.sensitivity * stream.normals(total.size))

    start = weights.astype(np.float32)
    trained = engine.train(start, training, noise=on_tensors(noised), batches=stream)
    if len(hidden) != STEPS:
        raise ValueError(f"the engine hid {len(hidden)} sums in {STEPS} steps: one in each is what is paid for")
    sent = trained.update(start)
    if sent.shape != start.shape:
        raise ValueError(f"the engine gives weights of the shape {sent.shape} for {start.shape}")
    if not np.isfinite(sent).all():
        raise ValueError("the weights that come out are not finite: is the learning rate too large?")


class Silo:
    """One silo: it trains with `threads` threads of torch, on at most `physical_batch` records at once.

    Guarantee: before the process's first charge, synthetic records take the whole path of the silo's own records
    (`rehearse`). A round's event is on the silo's ledger before a batch or noise is drawn for it.
    So the ledger bounds the cost of everything sent, and the budget bounds the ledger, however often the process
    restarts. Nothing leaves but an `Answer`, whose update comes from the noised sums of the steps alone.

    A round that the budget or a day's limit does not allow does not start, and the answer says so. A round charged
    before a crash under the operating system's randomness stays paid and is lost.
    """

    def __init__(
        self, name: str, run: RecordRun, *, engine: BatchedRecords, threads: int = 1, physical_batch: int = 256
    ) -> None:
        _validate.count(threads=threads)
        self.name = name
        self.run = run
        self.engine = engine
        self.threads = threads
        self.training = replace(run.training, physical_batch=physical_batch)
        self._rehearsed = False
        run.plan.check_held(engine.held, silo=name)
        run.name_third_party(engine.third_party)

    @property
    def epsilon(self) -> float:
        """The epsilon that was spent from the silo's ledger, by this run and others."""
        return self.run.ledger.spent().epsilon

    def statement(self) -> Statement:
        """The silo's statement about all charges of its ledger, by this run and others."""
        return self.run.statement()

    def answer(self, number: int, weights: Floats) -> Answer:
        """Take part in a round, counted from 0, that starts from these weights, if the budget allows it."""
        try:
            paid = self._paid(number, weights)
        except NotToday:
            return self._absent(number, "daily limit")
        except BudgetExceeded:
            return self._absent(number, "budget spent")
        if paid is None:
            return self._absent(number, "round lost")
        start = weights.astype(np.float32)
        with with_threads(self.threads):
            trained = self.engine.train(start, self.training, noise=on_tensors(paid.noise), batches=paid.batches)
        return Answer(silo=self.name, round=number, epsilon=self.epsilon, update=trained.update(start))

    def rehearse(self, weights: Floats) -> None:
        """Refuse, unspent, everything but the budget that could stop a round from these weights; once a process."""
        self.run.plan.check_held(self.engine.held, silo=self.name)
        if weights.shape != (self.engine.size,) or not np.isfinite(weights).all():
            problem = weights.shape if weights.shape != (self.engine.size,) else "numbers that are not finite"
            remedy = f"start the round with one vector of {self.engine.size} finite weights; nothing was spent"
            raise ConfigError(field="weights", value=problem, remedy=remedy)
        if not self._rehearsed:
            self.run.plan.training(self.engine.size)
            with with_threads(self.threads):
                rehearse(self.name, self.training, self.engine, weights)
            self._rehearsed = True

    def _paid(self, number: int, weights: Floats) -> RecordRound | None:
        """The paid round; None if it was paid before and cannot be repeated."""
        if number in self.run.rounds and not self.run.randomness.simulated:
            return None
        self.rehearse(weights)
        return self.run.round(number)

    def _absent(self, number: int, reason: Absence) -> Answer:
        return Answer(silo=self.name, round=number, epsilon=self.epsilon, absence=reason)
