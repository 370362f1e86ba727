"""A service, an impatient app or bad luck: a device pays once for what is sent, and its daily limit is one.

Two processes, two tables, two units, two names for one ledger, a restart, a crash, a restored outbox, a table of which
every row is lost.
"""

import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import closing, nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import Device, Server, Specification
from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Policy, Reason
from incrowd.drawdiscard.device import NoExamplesWarning, Outbox, Waiting, pay
from incrowd.errors import BudgetExceeded, LedgerMismatch
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.device import RELATION, Mechanism, Unit
from tests.drawdiscard.mail import LOOSE, asked, charges, mails, waiting
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in

TWICE = Policy(epsilon=2.0, daily_epsilon=4.0, budget=Budget(epsilon=50.0, delta=1e-9))


def spenders(ledger: Path, *, locked: bool) -> int:
    """How many of four get through whose locks, if any, are a file's."""
    with Device(mails(), ledger=ledger, policy=TWICE):
        pass
    ready, paid = threading.Barrier(4), []

    class Slow(DailyLimit):
        """Between its look at the day and its charge there is time for another."""

        def check(self, new: Sequence[RepeatedEvent]) -> str:
            day = super().check(new)
            if locked:
                time.sleep(0.02)
            else:
                ready.wait()
            return day

    def spend() -> None:
        with closing(Device(mails(), ledger=ledger, policy=TWICE)) as own:
            limit = Slow(ledger=own.ledger, epsilon=2.0, per="model")
            turn = own._turn if locked else nullcontext()
            try:
                with turn:
                    pay(asked().mechanism, limit=limit)
                paid.append(1)
            except BudgetExceeded:
                pass

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(paid)


def test_two_tables_on_one_ledger_pass_no_limit_and_without_the_lock_they_do(tmp_path: Path) -> None:
    assert spenders(tmp_path / "ledger.db", locked=True) == 1
    assert spenders(tmp_path / "other.db", locked=False) == 4


def test_a_restart_and_other_examples_bring_no_limit_back(tmp_path: Path) -> None:
    for number in range(5):
        allowed = nullcontext() if number == 0 else pytest.raises(BudgetExceeded)
        with Device(mails(first=number), ledger=tmp_path / "ledger.db") as own, allowed:
            own.answer(asked().to_json(), np.zeros(4))
    later = lambda: date(2999, 1, 1)  # noqa: E731 - the control: another day is another limit
    with Device(mails(), ledger=tmp_path / "ledger.db", today=later) as own:
        own.answer(asked().to_json(), np.zeros(4))
    assert charges(tmp_path / "ledger.db") == 2


PLACES: dict[str, tuple[Any, ...]] = {
    "before it pays": ("device.py", "pay", "call", 1, None),
    "after it paid": ("device.py", "pay", "return", 1, "lost"),
    "before its answer is kept": ("device.py", "keep", "call", 1, "lost"),
    "after its answer is kept": ("device.py", "keep", "return", 1, Reason.ACCEPTED),
    "while its answer is kept": ("_files.py", "sync", "call", 2, Reason.ACCEPTED),  # after its ledger's witness
    "before the answer is in": ("kept_pool.py", "enter", "call", 1, Reason.ACCEPTED),
    "before the server has kept it": ("server.py", "_keep", "call", 1, Reason.ACCEPTED),
    "when the server has kept it": ("server.py", "_keep", "return", 1, Reason.REPEATED),
    "before the outbox is empty": ("device.py", "clear", "call", 1, Reason.REPEATED),
    "at the very end": ("device.py", "clear", "return", 1, "paid"),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", PLACES)
def test_killed_anywhere_a_device_pays_once_and_counts_once(tmp_path: Path, when: str) -> None:
    """The one payment that is wasted is the one between paying and keeping: fresh noise would be a second release."""
    *place, then = PLACES[when]

    def work() -> None:
        server = Server(asked(), folder=tmp_path / "server", turned_away=1e-6)
        device = Device(mails(), ledger=tmp_path / "ledger.db")
        killed_in(Place(*place), lambda: device.contribute(server))

    assert status_of(start(work)) == -signal.SIGKILL
    server = Server(asked(), folder=tmp_path / "server", turned_away=1e-6)
    with Device(mails(), ledger=tmp_path / "ledger.db") as own:
        if then in ("lost", "paid"):
            with pytest.raises(BudgetExceeded):
                own.contribute(server)
        else:
            assert own.contribute(server).reason is (then or Reason.ACCEPTED)
    assert charges(tmp_path / "ledger.db") == 1
    assert server.accepted == (0 if then == "lost" else 1)
    server.close()


def test_an_outbox_that_is_put_back_is_the_same_release(tmp_path: Path) -> None:
    """Who copies the outbox can send the same answer again: the same bits, which tell nothing more and count once."""
    outbox = tmp_path / "ledger.db.outbox"
    with Server(asked(), turned_away=1e-6) as server, Device(mails(), ledger=tmp_path / "ledger.db") as own:
        drawn = server.draw()
        released, _ = own._released(asked(), drawn.weights)
        for number in range(3):
            Outbox(outbox).keep(Waiting.of(drawn, released))
            assert own.contribute(server).reason is (Reason.REPEATED if number else Reason.ACCEPTED)
        assert (server.accepted, charges(own.ledger)) == (1, 1)


def test_noise_from_a_seed_marks_what_a_device_claims(tmp_path: Path) -> None:
    for name, randomness in (("seeded", SeededRandomness(seed=1)), ("system", None)):
        with Device(mails(), ledger=tmp_path / name, randomness=randomness) as own:
            own.answer(asked().to_json(), np.zeros(4))
            assert any("SIMULATION" in caveat for caveat in own.statement().caveats) is (name == "seeded")


SIZE = 32
PER_NUMBER = Mechanism(size=SIZE, clip=1.0, epsilon=1.0, privacy="feature")
WHOLE = Mechanism(size=SIZE, clip=1.0, epsilon=1.0, privacy="model")


def a_day(ledger: Ledger, unit: Unit) -> DailyLimit:
    return DailyLimit(ledger=ledger, epsilon=4.0, per=unit)


def a_ledger() -> Ledger:
    return Ledger.in_memory(budget=Budget(epsilon=4.0, delta=1e-6), relation=RELATION, data_identity="a device")


@pytest.mark.watched
@pytest.mark.parametrize(("first", "second"), [("feature", "model"), ("model", "feature")])
def test_a_ledger_counts_in_one_unit(first: Unit, second: Unit) -> None:
    ledger = a_ledger()
    for _ in range(2):
        pay(PER_NUMBER if first == "feature" else WHOLE, limit=a_day(ledger, first))
    with pytest.raises(LedgerMismatch, match=f"the ledger counts per {first}, not per {second}"):
        pay(WHOLE, limit=a_day(ledger, second))
    with pytest.raises(LedgerMismatch):
        a_day(ledger, second).spent()


def test_control_the_ledger_by_itself_would_add_up_what_does_not() -> None:
    """What was found: a device of one unit went on with the ledger of the other, whose epsilon was too small."""
    ledger = a_ledger()
    for mechanism, unit in ((PER_NUMBER, "feature"), (WHOLE, "model")):
        ledger.charge(mechanism.event(unit))  # type: ignore[arg-type]  # one of two texts
    assert ledger.spent().epsilon < 2.1
    assert price(PER_NUMBER.event("model"), delta=1e-6, relation=RELATION).epsilon > 20


NUMBER = {"type": "number", "low": 0, "high": 10}
ATTACK: dict[str, object] = {"name": "attack", "gamma": 0.05, "clip": 0.2, "epsilon": 2.0, "instances": 4}


def of_number() -> Specification:
    return Specification.from_formula("y ~ x", **{**ATTACK, "fields": {"y": {"type": "boolean"}, "x": NUMBER}})


def table(path: Path, response: object) -> Path:
    with closing(sqlite3.connect(path)) as app, app:
        app.execute("CREATE TABLE examples (y, x)")
        app.execute("INSERT INTO examples VALUES (?, 3)", (response,))
    return path


@pytest.mark.parametrize("usable", [True, False])
def test_the_server_hears_the_same_and_the_owner_does_not(tmp_path: Path, usable: bool) -> None:
    """A specification can be made so that exactly the tables with some value have an example: an answer is no yes."""
    server = Server(of_number(), turned_away=1e-3)
    path = table(tmp_path / "app.sqlite", 1 if usable else "yes")
    with Device(path, policy=LOOSE) as own, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            assert own.contribute(server).accepted
        assert charges(own.ledger) == 3
    assert [warning.category for warning in told] == ([] if usable else [NoExamplesWarning] * 3)


def test_a_warning_that_is_made_an_error_changes_nothing_for_the_server(tmp_path: Path) -> None:
    server = Server(of_number(), turned_away=1e-3)
    with Device(table(tmp_path / "app.sqlite", "yes"), policy=LOOSE) as own:
        with pytest.raises(NoExamplesWarning):
            own.contribute(server)
        assert (server.accepted, charges(own.ledger), waiting(tmp_path)) == (1, 1, 0)
