"""Attack records in silos: canary records on the real path of silo, ledger, engine, batches, clip and noise.

Each canary record has a gradient in its own direction, and a coin says whether it takes part: orthogonal records are
independent trials. The adversary sees the noised sum of each step. The promise covers these sums, which show more than
the weights that leave a silo.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from torch import Tensor

from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.algorithms.silos import Silo
from incrowd.audit.bounds import Check, Claim, Finding
from incrowd.audit.canaries import Colluders, log_mixed, shares_std
from incrowd.audit.checks import ALARM, Steps, least_epsilon_of, likeness, size_of_noise
from incrowd.audit.shares import share_checks
from incrowd.errors import BudgetExceeded, IncrowdError
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import RecordEngine, Records, StepNoise, Trained
from incrowd.learning.losses import SQUARED
from incrowd.learning.models import linear
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import PrivateRun, Release
from incrowd.runs.config import Config
from incrowd.runs.work import assemble_records, assemble_silos
from incrowd.settings import Descent

MOST = 256
"""A silo has at most this many canaries."""

_NUMBERS = 2**23
"""The records of a silo together have at most this many numbers."""

_FAR = 1e4
"""A canary's gradient is this many bounds long, so that only the clip shortens it."""

_RATE = 1e-9  # the weights hardly move, and the gradients stay
_ODD = ((1.0, 0.5), (1e3, 1e3), (1e30, 1e30), (float("nan"), 1.0), (float("inf"), 1.0), (-1e38, 3e38), (1e-30, 1e-30))
"""Features and labels whose gradients are ordinary, long, beyond float32, or no numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloPlay:
    """A silo's run: which canaries were inside, the adversary's scores, paid rounds and their epsilon on the ledger.

    `noise` has stated deviations, [steps, numbers], `drawn` the batches of the canaries inside, [steps, canaries], and
    `divisor` the divisor of the sums on their way to the weights that left.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    noise: Floats
    rounds: int
    epsilon: float
    drawn: NDArray[np.bool_]
    divisor: float


class _Watched(BatchedRecords):
    """An engine that records its sums with and without noise; the latter show the audit which records were drawn."""

    def __init__(self, features: ArrayLike, labels: ArrayLike) -> None:
        rows, wanted = (torch.from_numpy(np.asarray(each, np.float32)) for each in (features, labels))
        model = linear(rows.shape[1], 1, bias=False)
        records = Records(features=rows, labels=wanted)
        super().__init__(model, records, Descent(learning_rate=_RATE), loss=SQUARED)
        self.totals: list[Floats] = []
        self.noised: list[Floats] = []

    def rehearsal(self, records: int) -> BatchedRecords:
        """Make a copy for made-up records, which are not recorded."""
        return BatchedRecords(self.model, self.records, self.descent, loss=self.loss).rehearsal(records)

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """Train, and record each step."""

        def watched(total: Tensor) -> Tensor:
            self.totals.append(total.double().cpu().numpy().copy())
            noised = noise(total)
            self.noised.append(noised.double().cpu().numpy().copy())
            return noised

        return super().train(weights, training, noise=watched, batches=batches)


@dataclass(frozen=True, kw_only=True)
class SiloGame:
    """The game against one silo's plan."""

    name: str
    plan: Plan
    rounds: int | None = None

    @cached_property
    def canaries(self) -> int:
        """Their number."""
        room = max(1, _NUMBERS // self.plan.config.members)
        others = self.plan.config.sharing[0] - 1 if self.plan.noise_by == "parties" else 0
        return max(1, min(self.plan.config.members - others, room, MOST))

    def play(self, seed: int) -> SiloPlay:
        """Play once."""
        plan, randomness = self.plan, SeededRandomness(seed=seed)
        inside = randomness.stream("canaries").bits(self.canaries) % np.uint64(2) == 1
        seen = self._engine(inside)
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
        divisor = -_RATE * float(summed @ summed) / float(summed @ moved)
        return self._seen(seen, inside, rounds, ledger.spent().epsilon, divisor=divisor)

    def rounds_within(self, ledger: Ledger, *, label: str, seed: int) -> int:
        """Count the rounds that a ledger pays for under this label."""
        silo = self.silo(RecordRun(self.plan, ledger=ledger, randomness=SeededRandomness(seed=seed), label=label))
        weights = np.zeros(self.canaries)
        return sum(silo.answer(number, weights).update is not None for number in range(self.plan.rounds))

    def longest(self) -> float:
        """The longest gradient that enters a sum, in bounds, of hostile records: infinite, huge or no numbers."""
        whole, found = replace(self.plan.training(), steps=1, sampling_prob=1.0, noise_multiplier=1.0), 0.0
        for feature, label in _ODD:
            seen = _Watched(np.array([[feature, 1.0]]), np.array([label]))
            seen.train(np.zeros(2), whole, noise=lambda total: total, batches=SeededRandomness(seed=0).stream("b"))
            entered = float(np.linalg.norm(seen.totals[0]))
            found = max(found, entered / whole.clip_norm if np.isfinite(entered) else np.inf)
        return found

    def silo(self, run: RecordRun, *, engine: RecordEngine | None = None) -> Silo:
        """The silo with this engine, or with one whose records are all zeros."""
        nobody = np.zeros(self.canaries, dtype=np.bool_)
        return Silo(self.name, run, engine=self._engine(nobody) if engine is None else engine)

    @property
    def _stated(self) -> float:
        """The stated deviation of the noise that the adversary sees."""
        training = self.plan.training()
        return training.sensitivity * training.noise_multiplier

    def _engine(self, inside: NDArray[np.bool_]) -> _Watched:
        """A linear model whose squared loss has the gradient (w x - y) x: along the canary, as long as its label.

        All other records are zeros, which have no gradient.
        """
        features = np.zeros((self.plan.config.members, self.canaries), np.float32)
        labels = np.zeros(self.plan.config.members, np.float32)
        places = np.flatnonzero(inside)
        features[places, places] = 1.0
        labels[places] = -_FAR * self.plan.training().clip_norm
        return _Watched(features, labels)

    def _seen(
        self,
        seen: _Watched,
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
    """The game against one plan for the records of all silos, whose sums are noised together.

    All canaries are in the first silo. The adversary sees each release and, if `colluding`, the colluders' shares.
    """

    colluding: bool = False

    def play(self, seed: int) -> SiloPlay:
        """See `SiloGame.play`."""
        randomness = SeededRandomness(seed=seed)
        inside = randomness.stream("canaries").bits(self.canaries) % np.uint64(2) == 1
        seen = self._engine(inside)
        ledger = Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation)
        run = PrivateRun(self.plan, ledger=ledger, randomness=randomness, size=self.canaries)
        known = Colluders(plan=self.plan, randomness=randomness, size=self.canaries) if self.colluding else None
        rounds = self.plan.rounds if self.rounds is None else min(self.rounds, self.plan.rounds)
        moved = np.zeros(self.canaries)
        for number in range(rounds):
            total = seen.clipped_sum(moved * 0, self.plan.training(), batches=run.batches(number, 0)).numpy()
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
        """Release a round with this sum of the first silo; each other silo has one record of zeros."""
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


def released_steps(plan: Plan, rounds: int) -> Steps:
    """All steps of some rounds, for `least_epsilon_of`."""
    training = plan.training()
    slack = training.sensitivity / training.clip_norm
    return {(training.sampling_prob, training.noise_multiplier * slack): rounds * training.steps}


def audit_silo(game: SiloGame, *, trials: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Attack one silo; a refusal of its own code speaks against it."""
    try:
        # Three plays at least: the noise of one is compared with that of others.
        plays = [game.play(seed + number) for number in range(max(3, -(-trials // game.canaries)))]
        return [_finding(game, plays)], _checks(game, plays, seed=seed)
    except IncrowdError as error:
        return [], [Check.refused(f"rounds of {game.name}", error, stated="work")]


def _finding(game: SiloGame, plays: Sequence[SiloPlay]) -> Finding:
    plan = game.plan
    scores, inside = (np.concatenate([getattr(play, name) for play in plays]) for name in ("scores", "inside"))
    epsilon, full = max(play.epsilon for play in plays), plan.training().sampling_prob == 1
    return Finding.of(
        Claim(unit="record", epsilon=epsilon, delta=plan.budget.delta, gaussian=full),
        scores[inside],
        scores[~inside],
        attack=f"records at right angles in {game.name}, seen through every step",
        note="the adversary sees the noised sum of each step, which is more than the weights that leave the silo",
    )


def _checks(game: SiloGame, plays: Sequence[SiloPlay], *, seed: int) -> list[Check]:
    """Check noise, batches, gradients, price and budget of a silo's rounds."""
    plan, name = game.plan, game.name
    noise = np.array([play.noise for play in plays if play.rounds == plays[0].rounds])
    steps = noise.shape[1]
    pairs = [(noise[:, first], noise[:, first + 1]) for first in range(min(steps - 1, 100))]
    pairs += [(noise[0], other) for other in noise[1:]]
    stated = max(play.epsilon for play in plays)
    lost = least_epsilon_of(released_steps(plan, plays[0].rounds), plan.budget.delta)
    longest = game.longest()
    return [
        size_of_noise(f"noise of the steps of {name}", noise.ravel()),
        likeness(pairs, name=f"noise of two steps of {name}, alike by"),
        *_batches(game, plays),
        Check(
            name=f"longest gradient that enters a step of {name}",
            measured=f"{longest:.6f} bounds",
            stated="at most 1",
            holds=longest <= 1 + 1e-4,  # rounded in float32, which the noise covers
        ),
        Check(
            name=f"price of {name}",
            measured=f"at least {lost:.4f}",
            stated=f"{stated:.4f}",
            holds=lost <= stated * (1 + 1e-6) and stated <= plan.budget.epsilon * (1 + 1e-9),
        ),
        _budget(game, seed=seed),
    ]


def _batches(game: SiloGame, plays: Sequence[SiloPlay]) -> Iterator[Check]:
    """Check the sampling rate of records, and that batches are independent Poisson samples."""
    training, name = game.plan.training(), game.name
    prob, batch = training.sampling_prob, training.expected_batch
    drawn = [play.drawn for play in plays if play.drawn.size]
    taken, chances = sum(int(one.sum()) for one in drawn), sum(one.size for one in drawn)
    reach = (float(norm.isf(ALARM)) * math.sqrt(chances * prob * (1 - prob)) + 10) if prob < 1 else 0.0
    yield Check(
        name=f"how often a record of {name} is in a batch",
        measured=f"{taken / max(1, chances):.4f} of the steps",
        stated=f"{prob:.4f}",
        holds=abs(taken - chances * prob) <= reach,
        note=f"would see {2 * reach / max(1.0, chances * prob):.1%} more or less",
    )
    if prob < 1:
        each = [one.sum(axis=0) - prob * len(one) for one in drawn]  # per record, over the steps
        together = [one.sum(axis=1) - prob * one.shape[1] for one in drawn]  # per step, over the records
        for what, counts, size in (("record", each, drawn[0].shape[0]), ("batch", together, drawn[0].shape[1])):
            scaled = np.concatenate(counts) / math.sqrt(max(1, size) * prob * (1 - prob))
            reach = 12 * math.sqrt((2 + 1 / (max(1, size) * prob * (1 - prob))) / scaled.size)
            ratio = float((scaled**2).mean())
            yield Check(
                name=f"spread of the draws of a {what} of {name}",
                measured=f"{ratio:.3f} of what is stated",
                stated="Poisson: each record by a coin of its own",
                holds=abs(ratio - 1) <= reach,
                note=f"would see {reach:.0%} more or less",
            )
    divisors = [play.divisor for play in plays]
    worst = max(divisors, key=lambda divisor: abs(divisor - batch))
    yield Check(
        name=f"divisor of a step of {name}",
        measured=f"{worst:.6g}",
        stated=f"{batch:.6g}, however many are drawn",
        holds=abs(worst - batch) <= 1e-3 * batch,
    )


def _budget(game: SiloGame, *, seed: int) -> Check:
    """Check that later runs of a silo count earlier ones."""
    plan = game.plan
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    given = sum(game.rounds_within(ledger, label=label, seed=seed) for label in ("first", "second", "third"))
    spent = ledger.spent().epsilon
    lost = least_epsilon_of(released_steps(plan, given), plan.budget.delta)
    return Check(
        name=f"what three runs of {game.name} may spend together",
        measured=f"{spent:.4f} in {given} rounds",
        stated=f"at most {plan.budget.epsilon:.4f}",
        holds=spent <= plan.budget.epsilon * (1 + 1e-9) and lost <= plan.budget.epsilon * (1 + 1e-6),
    )


def audit_silos(config: Config, *, trials: int, seed: int) -> tuple[list[Finding], list[Check], list[SiloGame]]:
    """Attack each silo of some settings, one for all silos with equal plans; the games are returned as well."""
    alike: list[SiloGame] = []
    if config.privacy.noise_by != "party":
        plan = assemble_records(config).plan
        alike = [SumsGame(name="all silos", plan=plan)]
        if plan.noise_by == "parties":
            alike.append(SumsGame(name="all silos but colluders", plan=plan, colluding=True))
    federation = None if alike else assemble_silos(config)
    for name, plan in () if federation is None else zip(federation.names, federation.plans, strict=True):
        if all(plan != game.plan for game in alike):
            alike.append(SiloGame(name=name, plan=plan))
    findings, checks = [], []
    for game in alike:
        its_findings, its_checks = audit_silo(game, trials=trials, seed=seed)
        findings += its_findings
        checks += its_checks
    if alike:
        checks += share_checks(alike[0].plan, seed=seed)
    return findings, checks, alike
