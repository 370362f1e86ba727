"""A device's whole life, for a server that wants to know which of two tables it has.

The server lies as it likes: it sends weights of its own choice, other ones every time, loses replies, says that answers
come too late, and asks again and again. The device is the product's own, with its policy, ledger and outbox. What it
sends may tell no more than its ledger charged in all.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from incrowd._random import Floats, SeededRandomness
from incrowd.audit.bounds import SURE, lower_bound
from incrowd.audit.device_plays import DeviceGame
from incrowd.audit.finding import Check, Finding
from incrowd.audit.odds import allowed, odds
from incrowd.drawdiscard.desk import Drawn, Reason
from incrowd.drawdiscard.device import Device
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.server import Outcome
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.device import RELATION

A_DAY, IN_ALL = 2, 3
"""So many contributions does the device's policy allow."""

_DAYS, _ASKED = 3, 5
"""For so many days it is asked so often a day, which is for more than it allows: an answer takes two."""

_DELTA = 1e-9

_SAME = 1e-3
"""Answers that differ by less, in scales of the noise, are one answer that was put on other weights; or by less than
float32 can show."""

_CHANCE = 2
"""In so many lives two answers may be as good as alike by chance: it happens in one of a million."""


@dataclass(frozen=True, kw_only=True)
class DeviceLife:
    """What a server has of one device: whether it had the first table, what its distinct answers say of that together,
    their `noise`, [answers, numbers], in scales, and how many came on each of the `days`; and what the device's ledger
    says: how many charges there were, and what they cost in all.
    """

    inside: bool
    score: float
    noise: Floats
    charges: int
    epsilon: float
    days: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LifetimeGame:
    """The game against a device that answers a model of two weights, on which its gradient is what a server wants.

    All that hides a device is as the specification has it. The response is always a half, `steer` one of two values,
    and `known` is 1: the weights decide that the prediction is too large for one table and too small for the other.
    """

    specification: Specification

    @cached_property
    def asked(self) -> Specification:
        """The specification of the two weights."""
        number = {"type": "number", "low": 0.0, "high": 1.0}
        given = self.specification
        return Specification.of(
            {
                **given.model_dump(mode="json", include=_KEPT),
                "name": "audit",
                "fields": dict.fromkeys(("half", "known", "steer"), number),
                "response": "half",
                "terms": [["known"], ["steer"]],
                "link": "linear",
                "intercept": False,
            }
        )

    @cached_property
    def device(self) -> DeviceGame:
        """How likely what noise is."""
        return DeviceGame(specification=self.asked)

    @cached_property
    def steered(self) -> tuple[float, float]:
        """The two tables' values: near zero, so that nearly all of a norm is in the other number; or near enough to
        one that a bound of each number cuts both, on weights that float32 still holds.
        """
        return (0.5, 1.0) if self.asked.bound == "element" else (1 / 8, 1 / 4)

    @cached_property
    def policy(self) -> Policy:
        """So many contributions a day and in all, whatever they cost."""
        event = self.asked.mechanism.event(self.asked.privacy)
        day, life = (price(compose([(event, times)]), delta=_DELTA, relation=RELATION) for times in (A_DAY, IN_ALL))
        one = price(event, delta=_DELTA, relation=RELATION).epsilon
        room = 1 + 1e-6
        return Policy(
            unit=self.asked.privacy,
            epsilon=max(one, self.asked.epsilon) * room,
            daily_epsilon=day.epsilon * room,
            budget=Budget(epsilon=life.epsilon * room, delta=_DELTA),
            whole_epsilon=1e12,
        )

    def weights(self, sign: float) -> Floats:
        """Weights for which the first table's gradient has this sign, and the second's the other."""
        low, high = self.steered
        far = sign * self.asked.clip * 2  # beyond a bound of the norm, and of each number where low is a half
        steer = -2 * far / (high - low)
        return np.array([0.5 + far - steer * low, steer])

    def gradient(self, weights: Floats, table: int) -> Floats:
        """What a textbook makes of a table's gradient at these weights."""
        row = np.array([1.0, self.steered[table]])
        bounded = self.asked.mechanism.bounded(self.asked.kept((row @ weights - 0.5) * row)).astype(np.float64)
        return bounded * (self.asked.mechanism.whole.step if self.asked.noise == "laplace" else 1.0)

    def live(self, seed: int) -> DeviceLife:
        """One device's life."""
        randomness = SeededRandomness(seed=seed)
        inside = bool(randomness.stream("tables").bits(1)[0] % 2)
        table = [{"half": 0.5, "known": 1.0, "steer": self.steered[0 if inside else 1]}]
        ledger = Ledger.in_memory(budget=self.policy.budget, relation=RELATION)
        server, days = _Liar(game=self), list[int]()
        clock = _OwnDay()
        with Device(table, ledger=ledger, policy=self.policy, randomness=randomness, today=clock.today) as device:
            for _ in range(_DAYS):
                before = len(server.answers)
                for _ in range(_ASKED):
                    with suppress(ConnectionError, BudgetExceeded):
                        device.contribute(server)
                days.append(len(server.answers) - before)
                clock.day += timedelta(days=1)
            charges, epsilon = ledger.charges()[0], ledger.spent().epsilon
        first, second = (
            np.array([answer - self.gradient(weights, table) for weights, answer in server.answers]).reshape(-1, 2)
            for table in (0, 1)
        )
        score = self.device.log_likely(first).sum() - self.device.log_likely(second).sum()
        noise = (first if inside else second) / self.asked.mechanism.noise_scale
        return DeviceLife(
            inside=inside, score=float(score), noise=noise, charges=charges, epsilon=epsilon, days=tuple(days)
        )


def lifetime_looks(asked: Specification, *, lives: int, seed: int, confidence: float) -> tuple[Finding, list[Check]]:
    """Attack so many devices over all of their lives.

    Guarantee: a device that keeps to its ledger passes but for one audit in a million; its ledgers are in memory.

    Edge cases: what a device remembers on disk is looked at in `devices`. Of Laplace noise the price in all is held
    against an attack at a delta of 1e-9.
    """
    game = LifetimeGame(specification=asked)
    seen = [game.live(seed * 1_000_003 + number) for number in range(lives)]
    return _finding(game, seen, confidence=confidence), list(_checks(seen))


def _finding(game: LifetimeGame, lives: Sequence[DeviceLife], *, confidence: float) -> Finding:
    scores, inside = np.array([life.score for life in lives]), np.array([life.inside for life in lives])
    ins, outs = scores[inside], scores[~inside]
    claimed, gaussian = max(life.epsilon for life in lives), game.asked.noise == "gaussian"
    known = odds(ins, outs, confidence=SURE)
    return Finding(
        attack="two tables told apart by all that a device sends in its life, to a server that lies",
        unit="device",
        claimed=claimed,
        delta=_DELTA,
        lower_bound=lower_bound(ins, outs, delta=_DELTA, confidence=confidence, gaussian=gaussian),
        sure_bound=lower_bound(ins, outs, delta=_DELTA, confidence=SURE, gaussian=gaussian),
        confidence=confidence,
        auc=known.auc,
        true_positives=known.true_positives,
        allowed=allowed(known.false_positives_at_most, epsilon=claimed, delta=_DELTA),
        trials=len(lives),
        note=f"the claim is what its ledger charged in all, for at most {IN_ALL} contributions",
    )


def _checks(lives: Sequence[DeviceLife]) -> Iterator[Check]:
    """Answers against charges, limits, and noise that comes again."""
    worst = max(lives, key=lambda life: len(life.noise) - life.charges)
    yield Check(
        name="answers that a device is charged for",
        measured=f"{len(worst.noise)} different ones for {worst.charges} charges",
        stated="as many charges",
        holds=all(len(life.noise) <= life.charges for life in lives),
        note="replies were lost, and answers came too late",
    )
    day, life = max(max(life.days) for life in lives), max(len(life.noise) for life in lives)
    yield Check(
        name="answers in a day and in a life",
        measured=f"{day} in a day, {life} in all",
        stated=f"at most {A_DAY} in a day, {IN_ALL} in all",
        holds=day <= A_DAY and life <= IN_ALL,
        note=f"asked {_ASKED} times a day, for {_DAYS} days",
    )
    again = sum(_comes_again(life.noise) for life in lives)
    yield Check(
        name="noise of a device that comes again",
        measured=f"in {again} of {len(lives)} lives",
        stated="none",
        holds=again <= max(_CHANCE, len(lives) // 100),
    )


def _comes_again(noise: Floats) -> bool:
    """Whether two answers have the same noise, as near as float32 shows."""
    apart = np.abs(noise[:, None] - noise[None]).max(axis=-1, initial=0.0)
    return bool((apart[np.triu_indices(len(noise), 1)] <= _SAME).any())


_KEPT = {
    "gamma", "clip", "epsilon", "delta", "noise", "privacy", "bound", "largest", "instances", "merge", "falls_every",
    "falls_by", "examples",
}  # fmt: skip
"""What of a specification has to do with what an answer tells."""


@dataclass
class _OwnDay:
    """The device's own."""

    day: date = date(2030, 1, 1)

    def today(self) -> date:
        return self.day


@dataclass(kw_only=True)
class _Liar:
    """A server that writes down every answer with the weights that it was made of."""

    game: LifetimeGame
    drawn: list[Floats] = field(default_factory=list)
    answers: list[tuple[Floats, Floats]] = field(default_factory=list)
    offers: int = 0

    def specification_json(self) -> str:
        return self.game.asked.to_json()

    def draw(self) -> Drawn:
        weights = self.game.weights(1.0 if len(self.drawn) % 2 == 0 else -1.0).astype(np.float32)
        self.drawn.append(weights.astype(np.float64))
        asked = self.game.asked
        return Drawn(weights, asked.fingerprint, asked.gamma, str(len(self.drawn) - 1).encode())

    def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
        """The first offer is lost, the second comes too late, twice, and the last is taken."""
        asked = self.game.asked
        weights = self.drawn[int(ticket)]
        sent = np.asarray(update, np.float64)
        answer = (weights - sent) / asked.gamma
        shown = float(np.finfo(np.float32).eps) * np.abs(np.stack([weights, sent])).max() / asked.gamma
        near = max(_SAME * asked.mechanism.noise_scale, 2 * shown)
        if not any(np.abs(answer - seen).max() <= near for _, seen in self.answers):
            self.answers.append((weights, answer))
        self.offers += 1
        if self.offers % 4 == 1:
            raise ConnectionError("the reply did not arrive")
        return Outcome(Reason.ACCEPTED if self.offers % 4 == 0 else Reason.LATE)
