"""A silo: a party that holds records, learns from them with DP-SGD, and pays for it from a ledger of its own."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import BudgetExceeded, ConfigError, NotToday
from incrowd.federated.counter import Counter
from incrowd.federated.rehearsal import difference, rehearse
from incrowd.learning.arithmetic import with_threads
from incrowd.learning.dpsgd.noise import on_tensors
from incrowd.learning.dpsgd.records import RecordEngine
from incrowd.privacy.permit import Account, Permit, reported
from incrowd.privacy.plan.silo_plan import SiloPlan
from incrowd.privacy.statement import Statement

Absence = Literal["budget spent", "round lost", "daily limit", "no answer", "refused"]
"""Why a silo has no part in a round: it could not pay, or not on this day; it paid, and was cut off; or a server that
asks over a network heard nothing of it, or what can be no answer.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a silo sends after a round, all of it: released, and public from here on.

    `epsilon` is what all releases from the silo's ledger have cost together. Without an `update` nothing was released,
    and `absence` says why. `records` and `right` are noised, and None unless the plan asks for counts.
    """

    silo: str
    round: int
    epsilon: float
    update: Floats | None = None
    noise_multiplier: float | None = None
    absence: Absence | None = None
    records: float | None = None
    right: float | None = None


class Silo:
    """One silo's part of a run. Torch trains with so many `threads`: where batches are small, one is the fastest.

    Guarantee: before this process's first charge, made-up records have gone the whole way that the silo's own will go
    (`incrowd.federated.rehearsal`). The event of a round is on the silo's ledger before a batch, or any noise, is drawn
    for it, so what was sent never costs more than the ledger says, and the ledger says no more than the budget, however
    often this process ends and starts again. Nothing leaves but `Answer`, whose update comes from the noised sums of
    the steps alone.

    Edge cases: a round that the budget, or a day's limit, does not allow is not begun, and the answer says so; so is
    one that was charged before a crash under the operating system's randomness: it stays paid and is lost. Refused, and
    nothing is spent: a ledger that the account cannot charge the plan to, fewer or more records than the plan's
    declared number allows, weights of another size or that are not finite, noise that fits no grid, and whatever fails
    on made-up records.
    """

    def __init__(
        self,
        plan: SiloPlan,
        account: Account,
        *,
        engine: RecordEngine,
        counter: Counter | None = None,
        threads: int = 1,
    ) -> None:
        _validate.count(threads=threads)
        account.check(plan)
        for name, wanted in (("count_std", plan.count_std), ("report_std", plan.report_std)):
            if wanted is not None and counter is None:
                raise ConfigError(field="counter", value=None, remedy=f"{name} asks for counts: say how to count")
        self.plan = plan
        self.account = account
        self.engine = engine
        self.threads = threads
        asked = plan.count_std is not None or plan.report_std is not None
        self._counter = counter if asked else None
        self._rehearsed = False
        plan.check(engine.held)

    @property
    def epsilon(self) -> float:
        """What was spent from the silo's ledger, by this run and others."""
        return self.account.ledger.spent().epsilon

    def statement(self) -> Statement:
        """What the silo may claim for all that was charged to its ledger, by this run and others."""
        own = len(self.account.paid()) + self.account.ledger.paid(self.account.report)
        return self.plan.statement(self.account.ledger, own=own)

    def answer(self, number: int, weights: Floats) -> Answer:
        """Take part in a round (from 0) that starts with these weights, if the budget allows it."""
        try:
            permit = self._permit(number, weights)
        except NotToday:
            return self._absent(number, "daily limit")
        except BudgetExceeded:
            return self._absent(number, "budget spent")
        if permit is None:
            return self._absent(number, "round lost")
        records = right = None
        if self._counter is not None and self.plan.count_std is not None:
            records, right = permit.counts(*self._counter.count(weights))
        start = weights.astype(np.float32)
        with with_threads(self.threads):
            trained = self.engine.train(start, permit.training, noise=on_tensors(permit.noise), batches=permit.batches)
        return Answer(
            silo=self.plan.name,
            round=number,
            epsilon=self.epsilon,
            update=difference(trained.weights, start),
            noise_multiplier=permit.training.noise_multiplier,
            records=records,
            right=right,
        )

    def report(self, weights: Floats, *, classes: int) -> Floats | None:
        """The noised table of what these weights call the silo's own records (`Counter.table`), once a run.

        Edge cases: None where the plan asks for none, the budget had no room for it, or one was charged before a crash
        under the operating system's randomness: it stays paid and is lost.
        """
        account, counter = self.account, self._counter
        if counter is None or not account.reserve_report(self.plan):
            return None
        if account.ledger.paid(account.report) and not account.randomness.simulated:
            return None
        with with_threads(self.threads):
            table = counter.table(weights, classes=classes)
        return reported(self.plan, account, table)

    def rehearse(self, weights: Floats) -> None:
        """See that nothing but the budget can stop a round that starts with these weights; once in a process's life.

        Edge cases: see `Silo`: what could stop it is refused, and nothing is spent.
        """
        self.plan.check(self.engine.held)
        if weights.shape != (self.engine.size,) or not np.isfinite(weights).all():
            problem = weights.shape if weights.shape != (self.engine.size,) else "numbers that are not finite"
            remedy = f"start the round with one vector of {self.engine.size} finite weights; nothing was spent"
            raise ConfigError(field="weights", value=problem, remedy=remedy)
        if not self._rehearsed:
            with with_threads(self.threads):
                rehearse(self.plan, self.engine, self._counter, weights)
            self._rehearsed = True

    def _permit(self, number: int, weights: Floats) -> Permit | None:
        """The round's permit, or none if the round was paid for and cannot be repeated."""
        account, paid = self.account, self.account.paid()
        if number in paid:
            if not account.randomness.simulated:
                return None
            multiplier = paid[number]
        else:
            if self.plan.report_runs:
                self.rehearse(weights)
                account.reserve_report(self.plan)
            usual = paid[max(paid)] if paid else None
            multiplier = self.plan.noise_multiplier(number, spent=account.commitments(self.plan), usual=usual)
        self.plan.check_noise(multiplier, size=self.engine.size)
        self.rehearse(weights)
        return Permit(self.plan, account, number=number, multiplier=multiplier)

    def _absent(self, number: int, why: Absence) -> Answer:
        return Answer(silo=self.plan.name, round=number, epsilon=self.epsilon, absence=why)
