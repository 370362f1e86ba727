"""Attack: a server, or an impatient app, gets more out of a device than its owner allows, by doing things twice.

Two processes, two tables, two names for one ledger, a restart, a crash, a restored outbox: the daily limit is one.
"""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from incrowd import Device, Server
from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Policy, Reason
from incrowd.drawdiscard.device import pay
from incrowd.drawdiscard.outbox import Outbox, Waiting
from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.daily import DailyLimit
from tests.drawdiscard.mail import asked, charges, mails

TWICE = Policy(epsilon=2.0, daily_epsilon=4.0, budget=Budget(epsilon=50.0, delta=1e-9))


def contribute(ledger: Path, ready: "threading.Barrier") -> None:
    """What one of several processes of a device does: as many contributions as it can get."""
    with Device(mails(), ledger=ledger, policy=TWICE) as own:
        ready.wait()
        for _ in range(3):
            try:
                own.answer(asked().to_json(), np.zeros(4))
            except BudgetExceeded:
                return


@pytest.mark.slow
def test_processes_cannot_both_spend_the_last_of_a_day(tmp_path: Path) -> None:
    start = multiprocessing.get_context("spawn")
    ready = start.Barrier(2)
    processes = [start.Process(target=contribute, args=(tmp_path / "ledger.db", ready)) for _ in range(2)]
    Device(mails(), ledger=tmp_path / "ledger.db", policy=TWICE).close()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert charges(tmp_path / "ledger.db") == 2


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


KILLED = """
import sys
from pathlib import Path
from incrowd import Device, Server
from tests.drawdiscard.mail import asked, mails
from tests.runs.kills import Place, killed_in
folder, place = Path(sys.argv[1]), Place(*sys.argv[2:5], int(sys.argv[5]))
server = Server(asked(), folder=folder / "server", turned_away=1e-6)
device = Device(mails(), ledger=folder / "ledger.db")
killed_in(place, lambda: device.contribute(server))
"""

PLACES = {
    "before it pays": ("device.py", "pay", "call", 1, None),
    "after it paid": ("device.py", "pay", "return", 1, "lost"),
    "before its answer is kept": ("outbox.py", "keep", "call", 1, "lost"),
    "after its answer is kept": ("outbox.py", "keep", "return", 1, Reason.ACCEPTED),
    "while its answer is kept": ("_files.py", "sync", "call", 2, Reason.ACCEPTED),  # after its ledger's witness
    "before the answer is in": ("server.py", "_entered", "call", 1, Reason.ACCEPTED),
    "before the server has kept it": ("server.py", "keep", "call", 1, Reason.ACCEPTED),
    "when the server has kept it": ("server.py", "keep", "return", 1, Reason.REPEATED),
    "before the outbox is empty": ("outbox.py", "clear", "call", 1, Reason.REPEATED),
    "at the very end": ("outbox.py", "clear", "return", 1, "paid"),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", PLACES)
def test_killed_anywhere_a_device_pays_once_and_counts_once(tmp_path: Path, when: str) -> None:
    """The one payment that is wasted is the one between paying and keeping: fresh noise would be a second release."""
    *place, then = PLACES[when]
    command = [sys.executable, "-c", KILLED, str(tmp_path), *map(str, place)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
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
            Outbox(outbox).keep(Waiting(asked().fingerprint, released).on(drawn))
            assert own.contribute(server).reason is (Reason.REPEATED if number else Reason.ACCEPTED)
        assert (server.accepted, charges(own.ledger)) == (1, 1)


def test_noise_from_a_seed_marks_what_a_device_claims(tmp_path: Path) -> None:
    for name, randomness in (("seeded", SeededRandomness(seed=1)), ("system", None)):
        with Device(mails(), ledger=tmp_path / name, randomness=randomness) as own:
            own.answer(asked().to_json(), np.zeros(4))
            assert any("SIMULATION" in caveat for caveat in own.statement().caveats) is (name == "seeded")
