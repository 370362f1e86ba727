"""A silo of canaries: each record has a gradient of its own direction, and a coin says whether it is inside.

What is attacked is the way of every real record: the silo, its ledger, engine, batches, clip, noise. The model
is one on which a record's gradient is whatever the canary wants, and every other thing is the plan's. Records at right
angles are trials by themselves. The adversary sees the noised sum of each step, which is what the promise is about, and
more than the weights that leave.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.algorithms.silos import Silo
from incrowd.audit.checks import Steps
from incrowd.audit.plays import Colluders, log_mixed, shares_std
from incrowd.errors import BudgetExceeded
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import RecordEngine, Records, StepNoise, Trained
from incrowd.learning.losses import SQUARED
from incrowd.learning.models import Model, linear
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.records import RecordRun
from incrowd.privacy.release import PrivateRun, Release
from incrowd.settings import Descent

MOST = 256
"""So many canaries are in one silo."""

_NUMBERS = 2**23
"""So many numbers have the records of a silo together at most."""

_FAR = 1e4
"""A canary's gradient is so many times longer than the bound, so that only a clip keeps it to it."""

_ODD = ((1.0, 0.5), (1e3, 1e3), (1e30, 1e30), (float("nan"), 1.0), (float("inf"), 1.0), (-1e38, 3e38), (1e-30, 1e-30))
"""Features and labels whose gradients are ordinary, long, beyond float32, or no numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloPlay:
    """One silo's run: who was inside, the adversary's scores, the noise of each step in stated standard deviations,
    [steps, numbers], how many rounds were paid for, and what the ledger says they cost.

    `drawn` says which canaries who were inside were in which batch, [steps, canaries], and `divisor` by what the sums
    were divided on their way to the weights that left.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    noise: Floats
    rounds: int
    epsilon: float
    drawn: NDArray[np.bool_]
    divisor: float


@dataclass(frozen=True, kw_only=True)
class SiloGame:
    """The game against one silo's plan."""

    name: str
    plan: Plan
    rounds: int | None = None

    @cached_property
    def canaries(self) -> int:
        """How many there are."""
        room = max(1, _NUMBERS // self.plan.config.members)
        others = self.plan.config.sharing[0] - 1 if self.plan.noise_by == "parties" else 0
        return max(1, min(self.plan.config.members - others, room, MOST))

    def play(self, seed: int) -> SiloPlay:
        """Play once."""
        plan, randomness = self.plan, SeededRandomness(seed=seed)
        inside = randomness.stream("canaries").bits(self.canaries) % np.uint64(2) == 1
        seen = _Overlooked(self._engine(inside))
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        silo = self.silo(RecordRun(plan, ledger=ledger, randomness=randomness), engine=seen)
        weights, rounds, moved = np.zeros(self.canaries), 0, np.zeros(self.canaries)
        for number in range(plan.rounds if self.rounds is None else min(self.rounds, plan.rounds)):
            answer = silo.answer(number, weights)
            if answer.update is None:
                break
            rounds += 1
            moved += answer.update
        summed = np.sum(seen.noised, axis=0)
        divisor = -self._rate * float(summed @ summed) / float(summed @ moved)
        return self._seen(seen, inside, rounds, ledger.spent().epsilon, divisor=divisor)

    def rounds_within(self, ledger: Ledger, *, label: str, seed: int) -> int:
        """How many rounds a run under this label gets from a ledger."""
        silo = self.silo(RecordRun(self.plan, ledger=ledger, randomness=SeededRandomness(seed=seed), label=label))
        weights = np.zeros(self.canaries)
        return sum(silo.answer(number, weights).update is not None for number in range(self.plan.rounds))

    def longest(self) -> float:
        """The longest gradient that enters a sum, in clip bounds, of records that mean no good: not a number, infinite,
        huge; each alone in its silo, in every batch.
        """
        whole, found = replace(self.plan.training(), steps=1, sampling_prob=1.0, noise_multiplier=1.0), 0.0
        for feature, label in _ODD:
            seen = _Overlooked(self._of_one(feature, label))
            seen.train(np.zeros(2), whole, noise=lambda total: total, batches=SeededRandomness(seed=0).stream("b"))
            entered = float(np.linalg.norm(seen.totals[0]))
            found = max(found, entered / whole.clip_norm if np.isfinite(entered) else np.inf)
        return found

    def silo(self, run: RecordRun, *, engine: RecordEngine | None = None) -> Silo:
        """The silo, with an engine; without, with one whose records are all zeros."""
        nobody = np.zeros(self.canaries, dtype=np.bool_)
        return Silo(self.name, run, engine=self._engine(nobody) if engine is None else engine)

    @property
    def _stated(self) -> float:
        """The standard deviation of the noise that the adversary sees."""
        training = self.plan.training()
        return training.sensitivity * training.noise_multiplier

    @property
    def _rate(self) -> float:
        """So small that the gradients stay what they are."""
        return 1e-9

    @property
    def _model(self) -> Model:
        return linear(self.canaries, 1, bias=False)

    def _of_one(self, feature: float, label: float) -> RecordEngine:
        features = torch.tensor([[feature, 1.0]], dtype=torch.float32)
        records = Records(features=features, labels=torch.tensor([label], dtype=torch.float32))
        return BatchedRecords(linear(2, 1, bias=False), records, Descent(learning_rate=1e-9), loss=SQUARED)

    def _engine(self, inside: NDArray[np.bool_]) -> BatchedRecords:
        """A linear model without bias, whose squared loss has the gradient (w x - y) x: along the canary's direction,
        as long as its label says. Who is outside, and everybody else, is a record of zeros, which has no gradient.
        """
        still = Descent(learning_rate=self._rate)
        return BatchedRecords(self._model, self._records(inside), still, loss=SQUARED)

    def _records(self, inside: NDArray[np.bool_]) -> Records:
        features = np.zeros((self.plan.config.members, self.canaries), np.float32)
        labels = np.zeros(self.plan.config.members, np.float32)
        places = np.flatnonzero(inside)
        features[places, places] = 1.0
        labels[places] = -_FAR * self.plan.training().clip_norm
        return Records(features=torch.from_numpy(features), labels=torch.from_numpy(labels))

    def _seen(
        self,
        seen: "_Overlooked",
        inside: NDArray[np.bool_],
        rounds: int,
        epsilon: float,
        *,
        divisor: float,
    ) -> SiloPlay:
        training = self.plan.training()
        bound = training.clip_norm
        stated = np.full(rounds * training.steps, self._stated)
        noised = np.array(seen.noised).reshape(len(stated), -1)
        entered = np.array(seen.totals).reshape(noised.shape)
        scores = np.zeros(self.canaries)
        for row, std in zip(noised, stated, strict=True):
            scores += log_mixed(row / bound, 1.0, std / bound, training.sampling_prob)
        return SiloPlay(
            inside=inside,
            scores=scores,
            noise=(noised - bound * np.where(np.abs(entered) > bound / 2, np.sign(entered), 0.0)) / stated[:, None],
            rounds=rounds,
            epsilon=epsilon,
            drawn=np.abs(entered[:, inside]) > bound / 2,
            divisor=divisor,
        )


@dataclass(frozen=True, kw_only=True)
class SumsGame(SiloGame):
    """The game against one plan for the records of all silos, whose sums the server noises.

    All canaries are in the first silo. The adversary sees each round's release, and where silos share the noise and it
    is `colluding`, the shares of the colluders.
    """

    colluding: bool = False

    def play(self, seed: int) -> SiloPlay:
        """See `SiloGame.play`."""
        randomness = SeededRandomness(seed=seed)
        inside = randomness.stream("canaries").bits(self.canaries) % np.uint64(2) == 1
        engine, seen = self._engine(inside), _Overlooked(self._engine(inside))
        ledger = Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation)
        run = PrivateRun(self.plan, ledger=ledger, randomness=randomness, size=self.canaries)
        known = Colluders(plan=self.plan, randomness=randomness, size=self.canaries) if self.colluding else None
        rounds = self.plan.rounds if self.rounds is None else min(self.rounds, self.plan.rounds)
        moved = np.zeros(self.canaries)
        for number in range(rounds):
            total = engine.clipped_sum(moved * 0, self.plan.training(), batches=run.batches(number, 0)).numpy()
            release = self._released(run, number, -total)
            release = release if known is None else known.less(release)
            seen.totals.append(total)
            seen.noised.append(-release.total.values)
            moved -= release.mean
        summed = np.sum(seen.noised, axis=0)
        divisor = float(summed @ summed) / float(summed @ moved)
        return self._seen(seen, inside, rounds, ledger.spent().epsilon, divisor=divisor)

    def rounds_within(self, ledger: Ledger, *, label: str, seed: int) -> int:
        """See `SiloGame.rounds_within`."""
        randomness = SeededRandomness(seed=seed)
        try:
            run = PrivateRun(self.plan, ledger=ledger, randomness=randomness, size=1, label=label)
        except BudgetExceeded:
            return 0
        for number in range(self.plan.rounds):
            self._released(run, number, np.zeros(1))
        return self.plan.rounds

    def _released(self, run: PrivateRun, number: int, total: Floats) -> Release:
        """A round with this sum of the first silo; all others have one record each, of zeros."""
        plan, opened, silos = self.plan, run.round(number), 1
        if plan.noise_by == "parties":
            silos = plan.config.sharing[0]
            opened.listing(silos)
        for silo in range(silos):
            records = 1 if silo else plan.config.members - silos + 1
            opened.add_records(plan.training().whole(0 * total if silo else total), silo=silo, records=records)
        return opened.release()

    @property
    def _stated(self) -> float:
        """See `SiloGame._stated`."""
        if self.plan.noise_by != "parties":
            return super()._stated
        parties, colluders = self.plan.config.sharing
        return shares_std(self.plan, 0, parties - colluders if self.colluding else parties)


class _Overlooked:
    """An engine as whoever sees its noised sums sees it; the sums without noise tell the audit who was drawn."""

    def __init__(self, engine: RecordEngine) -> None:
        self._engine = engine
        self.totals: list[Floats] = []
        self.noised: list[Floats] = []

    @property
    def size(self) -> int:
        """See `RecordEngine.size`."""
        return self._engine.size

    @property
    def third_party(self) -> str:
        """See `RecordEngine.third_party`."""
        return self._engine.third_party

    @property
    def held(self) -> int:
        """See `RecordEngine.held`."""
        return self._engine.held

    def rehearsal(self, records: int) -> RecordEngine:
        """See `RecordEngine.rehearsal`."""
        return self._engine.rehearsal(records)

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """See `RecordEngine.train`."""

        def watched(total: Tensor) -> Tensor:
            self.totals.append(total.double().cpu().numpy().copy())
            noised = noise(total)
            self.noised.append(noised.double().cpu().numpy().copy())
            return noised

        return self._engine.train(weights, training, noise=watched, batches=batches)


def released_steps(plan: Plan, rounds: int) -> Steps:
    """All steps of so many rounds, as `least_epsilon_of` composes them."""
    training = plan.training()
    slack = training.sensitivity / training.clip_norm
    return {(training.sampling_prob, training.noise_multiplier * slack): rounds * training.steps}
