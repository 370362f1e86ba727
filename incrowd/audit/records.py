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

from incrowd._random import Floats, Randomness, SeededRandomness, Stream
from incrowd.algorithms.silos import Silo
from incrowd.audit.bounds import Check, Finding
from incrowd.audit.canaries import MOST, Colluders, coins, ledger_of, log_mixed, shares_std
from incrowd.audit.checks import ALARM, least_epsilon_of, likeness, size_of_noise
from incrowd.audit.shares import share_checks
from incrowd.errors import BudgetExceeded, IncrowdError
from incrowd.learning.dpsgd.engine import BatchedRecords, Records, StepNoise, Trained
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

_NUMBERS = 2**23
"""The records of a silo together have at most this many numbers."""

_FAR = 1e4
"""A canary's gradient is this many bounds long, so that only the clip shortens it."""

_RATE = 1e-9  # the weights hardly move, and the gradients stay
_ODD = ((1.0, 0.5), (1e3, 1e3), (1e30, 1e30), (float("nan"), 1.0), (float("inf"), 1.0), (-1e38, 3e38), (1e-30, 1e-30))
"""Features and labels whose gradients are ordinary, long, beyond float32, or no numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordPlay:
    """The rounds of a plan: which canaries were inside, the adversary's scores, and the epsilon on the ledger.

    `noise` has stated deviations, [steps, numbers], `drawn` the batches of the canaries inside, [steps, canaries], and
    `divisor` the divisor of the sums on their way to the weights.
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
class RecordGame:
    """The game against the plan of one silo, or against that of all silos, whose sums are noised together.

    All canaries are in one silo. The adversary sees each noised sum and, if `colluding`, the colluders' shares.
    """

    name: str
    plan: Plan
    colluding: bool = False

    @cached_property
    def canaries(self) -> int:
        """Their number."""
        room = max(1, _NUMBERS // self.plan.config.members)
        others = self.plan.config.sharing[0] - 1 if self.plan.noise_by == "parties" else 0
        return max(1, min(self.plan.config.members - others, room, MOST))

    def play(self, seed: int) -> RecordPlay:
        """Play once."""
        randomness, training, ledger = SeededRandomness(seed=seed), self.plan.training(), ledger_of(self.plan)
        inside = coins(randomness, self.canaries)
        seen = self._engine(inside)
        rounds, moved = self._rounds(seen, ledger, randomness)
        noised, entered = (np.array(each).reshape(-1, self.canaries) for each in (seen.noised, seen.totals))
        bound, std, summed = training.clip_norm, self._stated(), noised.sum(axis=0)
        sent = bound * np.where(np.abs(entered) > bound / 2, np.sign(entered), 0.0)
        return RecordPlay(
            inside=inside,
            scores=log_mixed(noised / bound, 1.0, std / bound, training.sampling_prob).sum(axis=0),
            noise=(noised - sent) / std,
            rounds=rounds,
            epsilon=ledger.spent().epsilon,
            drawn=np.abs(entered[:, inside]) > bound / 2,
            divisor=float(summed @ summed) / float(summed @ moved),
        )

    def longest(self) -> float:
        """The longest gradient that enters a sum, in bounds, of hostile records: infinite, huge or no numbers."""
        whole, found = replace(self.plan.training(), steps=1, sampling_prob=1.0, noise_multiplier=1.0), 0.0
        for feature, label in _ODD:
            seen = _Watched(np.array([[feature, 1.0]]), np.array([label]))
            seen.train(np.zeros(2), whole, noise=lambda total: total, batches=SeededRandomness(seed=0).stream("b"))
            entered = float(np.linalg.norm(seen.totals[0]))
            found = max(found, entered / whole.clip_norm if np.isfinite(entered) else np.inf)
        return found

    def rounds_within(self, ledger: Ledger, *, label: str, seed: int) -> int:
        """Count the rounds that a ledger pays for under this label."""
        nobody = self._engine(np.zeros(self.canaries, dtype=np.bool_))
        try:
            return self._rounds(nobody, ledger, SeededRandomness(seed=seed), label=label)[0]
        except BudgetExceeded:
            return 0

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

    def _rounds(
        self, engine: _Watched, ledger: Ledger, randomness: Randomness, *, label: str = "audit"
    ) -> tuple[int, Floats]:
        """Take the rounds that a ledger pays for: their number, and the means that the weights have seen."""
        plan, moved = self.plan, np.zeros(self.canaries)
        if plan.noise_by == "party":
            silo = Silo(self.name, RecordRun(plan, ledger=ledger, randomness=randomness, label=label), engine=engine)
            for number in range(plan.rounds):
                update = silo.answer(number, np.zeros(self.canaries)).update
                if update is None:
                    return number, moved
                moved -= update / _RATE
            return plan.rounds, moved
        run = PrivateRun(plan, ledger=ledger, randomness=randomness, size=self.canaries, label=label)
        known = Colluders(plan, randomness, self.canaries) if self.colluding else None
        for number in range(plan.rounds):
            total = engine.clipped_sum(np.zeros(self.canaries), plan.training(), batches=run.batches(number, 0)).numpy()
            release = self._released(run, number, total)
            release = release if known is None else known.less(release)
            engine.totals.append(total)
            engine.noised.append(release.total.values)
            moved += release.mean
        return plan.rounds, moved

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

    def _stated(self) -> float:
        """The stated deviation of the noise that the adversary sees."""
        if self.plan.noise_by != "parties":
            return self.plan.training().sensitivity * self.plan.training().noise_multiplier
        parties, colluders = self.plan.config.sharing
        return shares_std(self.plan, 0, parties - colluders if self.colluding else parties)


def least_epsilon_of_rounds(plan: Plan, rounds: int) -> float:
    """A lower bound of the epsilon of some rounds."""
    training = plan.training()
    slack = training.sensitivity / training.clip_norm
    steps = {(training.sampling_prob, training.noise_multiplier * slack): rounds * training.steps}
    return least_epsilon_of(steps, plan.budget.delta)


def audit_silo(game: RecordGame, *, trials: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Attack one plan; a refusal of its own code speaks against it."""
    try:
        # Three plays at least: the noise of one is compared with that of others.
        plays = [game.play(seed + number) for number in range(max(3, -(-trials // game.canaries)))]
        return [_finding(game, plays)], _checks(game, plays, seed=seed)
    except IncrowdError as error:
        return [], [Check.refused(f"rounds of {game.name}", error)]


def _finding(game: RecordGame, plays: Sequence[RecordPlay]) -> Finding:
    return Finding.of(
        np.concatenate([play.scores for play in plays]),
        np.concatenate([play.inside for play in plays]),
        claimed=max(play.epsilon for play in plays),
        delta=game.plan.budget.delta,
        gaussian=game.plan.training().sampling_prob == 1,
        unit="record",
        attack=f"records at right angles in {game.name}, seen through every step",
        note="the adversary sees the noised sum of each step, which is more than the weights that leave the silo",
    )


def _checks(game: RecordGame, plays: Sequence[RecordPlay], *, seed: int) -> list[Check]:
    """Check noise, batches, gradients, price and budget of the rounds."""
    plan, name = game.plan, game.name
    noise = np.array([play.noise for play in plays if play.rounds == plays[0].rounds])
    steps = noise.shape[1]
    pairs = [(noise[:, first], noise[:, first + 1]) for first in range(min(steps - 1, 100))]
    pairs += [(noise[0], other) for other in noise[1:]]
    stated, lost = max(play.epsilon for play in plays), least_epsilon_of_rounds(plan, plays[0].rounds)
    longest, affordable = game.longest(), plan.budget.epsilon * (1 + 1e-9)
    ledger = ledger_of(plan)
    given = sum(game.rounds_within(ledger, label=label, seed=seed) for label in ("first", "second", "third"))
    spent, least = ledger.spent().epsilon, least_epsilon_of_rounds(plan, given)
    return [
        size_of_noise(f"noise of the steps of {name}", noise.ravel()),
        likeness(pairs, name=f"noise of two steps of {name}, alike by"),
        *_batches(game, plays),
        Check(
            f"longest gradient that enters a step of {name}",
            f"{longest:.6f} bounds",
            "at most 1",
            holds=longest <= 1 + 1e-4,  # rounded in float32, which the noise covers
        ),
        Check(
            f"price of {name}",
            f"at least {lost:.4f}",
            f"{stated:.4f}",
            holds=lost <= stated * (1 + 1e-6) and stated <= affordable,
        ),
        Check(
            f"what three runs of {name} may spend together",
            f"{spent:.4f} in {given} rounds",
            f"at most {plan.budget.epsilon:.4f}",
            holds=spent <= affordable and least <= plan.budget.epsilon * (1 + 1e-6),
        ),
    ]


def _batches(game: RecordGame, plays: Sequence[RecordPlay]) -> Iterator[Check]:
    """Check the sampling rate of records, and that batches are independent Poisson samples."""
    training, name = game.plan.training(), game.name
    prob, batch = training.sampling_prob, training.expected_batch
    drawn = [play.drawn for play in plays if play.drawn.size]
    taken, chances = sum(int(one.sum()) for one in drawn), sum(one.size for one in drawn)
    reach = (float(norm.isf(ALARM)) * math.sqrt(chances * prob * (1 - prob)) + 10) if prob < 1 else 0.0
    yield Check(
        f"how often a record of {name} is in a batch",
        f"{taken / max(1, chances):.4f} of the steps",
        f"{prob:.4f}",
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
                f"spread of the draws of a {what} of {name}",
                f"{ratio:.3f} of what is stated",
                "Poisson: each record by a coin of its own",
                holds=abs(ratio - 1) <= reach,
                note=f"would see {reach:.0%} more or less",
            )
    divisors = [play.divisor for play in plays]
    worst = max(divisors, key=lambda divisor: abs(divisor - batch))
    stated = f"{batch:.6g}, however many are drawn"
    yield Check(f"divisor of a step of {name}", f"{worst:.6g}", stated, holds=abs(worst - batch) <= 1e-3 * batch)


def audit_silos(config: Config, *, trials: int, seed: int) -> tuple[list[Finding], list[Check], list[RecordGame]]:
    """Attack each silo of some settings, one for all silos with equal plans; the games are returned as well."""
    games: list[RecordGame] = []
    if config.privacy.noise_by == "party":
        federation = assemble_silos(config)
        for name, plan in zip(federation.names, federation.plans, strict=True):
            if all(plan != game.plan for game in games):
                games.append(RecordGame(name=name, plan=plan))
    else:
        plan = assemble_records(config).plan
        games.append(RecordGame(name="all silos", plan=plan))
        if plan.noise_by == "parties":
            games.append(RecordGame(name="all silos but colluders", plan=plan, colluding=True))
    findings, checks = list[Finding](), list[Check]()
    for game in games:
        found, looked = audit_silo(game, trials=trials, seed=seed)
        findings += found
        checks += looked
    return findings, [*checks, *share_checks(games[0].plan, seed=seed)], games
