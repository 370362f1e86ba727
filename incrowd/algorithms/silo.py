"""A silo: a party that holds records, learns from them with DP-SGD, and pays for it from a ledger of its own."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from incrowd import _validate
from incrowd._random import Floats
from incrowd.algorithms.counter import Counter
from incrowd.algorithms.rehearsal import difference, rehearse
from incrowd.errors import BudgetExceeded, ConfigError, NotToday
from incrowd.learning.arithmetic import with_threads
from incrowd.learning.dpsgd.noise import on_tensors
from incrowd.learning.dpsgd.records import RecordEngine
from incrowd.privacy.records import RecordRound, RecordRun
from incrowd.privacy.statement import Statement

Absence = Literal["budget spent", "round lost", "daily limit", "no answer", "refused"]
"""Why a silo has no part in a round: it could not pay, or not on this day; it paid, and was cut off; or a server that
asks over a network heard nothing of it, or what can be no answer.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a silo sends after a round, all of it: released, and public from here on.

    `epsilon` is what all releases from the silo's ledger have cost together. Without an `update` nothing was released,
    and `absence` says why.
    """

    silo: str
    round: int
    epsilon: float
    update: Floats | None = None
    absence: Absence | None = None


class Silo:
    """One silo's part of a run, under a name. Torch trains with so many `threads` (where batches are small, one is the
    fastest) on at most `physical_batch` records at once.

    Guarantee: before this process's first charge, made-up records have gone the whole way that the silo's own will go
    (`incrowd.algorithms.rehearsal`). The event of a round is on the silo's ledger before a batch, or any noise, is
    drawn for it, so what was sent never costs more than the ledger says, and the ledger says no more than the budget,
    however often this process ends and starts again. Nothing leaves but `Answer`, whose update comes from the noised
    sums of the steps alone.

    Edge cases: a round that the budget, or a day's limit, does not allow is not begun, and the answer says so; so is
    one that was charged before a crash under the operating system's randomness: it stays paid and is lost. Refused, and
    nothing is spent: fewer or more records than the plan's declared number allows, weights of another size or that are
    not finite, noise that fits no grid, and whatever fails on made-up records.
    """

    def __init__(
        self,
        name: str,
        run: RecordRun,
        *,
        engine: RecordEngine,
        counter: Counter | None = None,
        threads: int = 1,
        physical_batch: int = 256,
    ) -> None:
        _validate.count(threads=threads)
        reports = run.plan.config.report_std is not None
        if reports and counter is None:
            raise ConfigError(field="counter", value=None, remedy="report_std asks for counts: say how to count")
        self.name = name
        self.run = run
        self.engine = engine
        self.threads = threads
        self.training = replace(run.training, physical_batch=physical_batch)
        self._counter = counter if reports else None
        self._rehearsed = False
        run.plan.check_held(engine.held, silo=name)

    @property
    def epsilon(self) -> float:
        """What was spent from the silo's ledger, by this run and others."""
        return self.run.ledger.spent().epsilon

    def statement(self) -> Statement:
        """What the silo may claim for all that was charged to its ledger, by this run and others."""
        return self.run.statement()

    def answer(self, number: int, weights: Floats) -> Answer:
        """Take part in a round (from 0) that starts with these weights, if the budget allows it."""
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
        update = difference(trained.weights, start)
        return Answer(silo=self.name, round=number, epsilon=self.epsilon, update=update)

    def report(self, weights: Floats, *, classes: int) -> Floats | None:
        """The noised table of what these weights call the silo's own records (`Counter.table`), once a run.

        Edge cases: None where the plan asks for none, the budget had no room for it, or one was charged before a crash
        under the operating system's randomness: it stays paid and is lost.
        """
        run, counter = self.run, self._counter
        if counter is None or (run.reported and not run.randomness.simulated):
            return None
        try:
            run.reserve()
        except BudgetExceeded:
            return None
        with with_threads(self.threads):
            table = counter.table(weights, classes=classes)
        return run.report(table)

    def rehearse(self, weights: Floats) -> None:
        """See that nothing but the budget can stop a round that starts with these weights; once in a process's life.

        Edge cases: see `Silo`: what could stop it is refused, and nothing is spent.
        """
        self.run.plan.check_held(self.engine.held, silo=self.name)
        if weights.shape != (self.engine.size,) or not np.isfinite(weights).all():
            problem = weights.shape if weights.shape != (self.engine.size,) else "numbers that are not finite"
            remedy = f"start the round with one vector of {self.engine.size} finite weights; nothing was spent"
            raise ConfigError(field="weights", value=problem, remedy=remedy)
        if not self._rehearsed:
            self.run.plan.training(self.engine.size)
            with with_threads(self.threads):
                rehearse(self.name, self.training, self.engine, self._counter, weights)
            self._rehearsed = True

    def _paid(self, number: int, weights: Floats) -> RecordRound | None:
        """The round, paid for; or None if it was paid for before and cannot be repeated."""
        if number in self.run.rounds and not self.run.randomness.simulated:
            return None
        self.rehearse(weights)
        return self.run.round(number)

    def _absent(self, number: int, why: Absence) -> Answer:
        return Answer(silo=self.name, round=number, epsilon=self.epsilon, absence=why)
