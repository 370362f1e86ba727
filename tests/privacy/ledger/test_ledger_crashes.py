"""Processes that are killed, run out of disk, and race: no overspend, no lost event, always a clear error."""

import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from incrowd.errors import BudgetExceeded, LedgerUnwritable
from incrowd.privacy.account.accounting import Price, price
from incrowd.privacy.ledger import ledger as module
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.ledger.tally import Reservation
from tests.privacy.ledgers import EVENT, FITS, SMALL, begin, start, status_of, written
from tests.runs.kills import killed_at

PLAN = 5000


class Releases:
    """What a process gave away, kept in a file: a line is there from the moment it was written, killed or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"\n")
        os.close(descriptor)

    def count(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


@pytest.fixture
def releases(folder: Path) -> Releases:
    return Releases(folder / "released")


def planned(ledger: Ledger) -> Reservation:
    return ledger.reserve([(SMALL, PLAN)], label="run")


def check(path: Path, releases: Releases, before: int) -> int:
    """What holds after every crash; returns how many events are charged now, of which `before` were before."""
    with begin(path) as ledger:  # takes an interrupted write back
        charged = ledger.verify().charged
        assert ledger.reservations() == () or planned(ledger).charged == charged
    assert releases.count() <= charged
    assert charged >= before
    report = verify(path)
    assert report["intact"], report
    return charged


# Killed


@pytest.mark.parametrize("stride", [41, pytest.param(3, marks=pytest.mark.slow)])
def test_a_process_killed_before_any_line_of_a_charge_has_lost_nothing(
    path: Path, releases: Releases, stride: int
) -> None:
    begin(path).close()

    def charge(line: int) -> None:
        with begin(path) as ledger:
            standing = planned(ledger)
            killed_at("/incrowd/privacy/", line, lambda: ledger.charge(SMALL, reservation=standing.label))
            releases.add()

    charged, crashes, wasted, status = 0, 0, 0, -signal.SIGKILL
    while True:
        line = 1 + stride * crashes
        status = status_of(start(lambda: charge(line)))  # noqa: B023 - waited for
        now = check(path, releases, charged)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        crashes, wasted, charged = crashes + 1, wasted + now - charged, now
    assert releases.count() == 1
    assert crashes * stride > 150
    assert 0 < wasted < crashes  # some were killed before the commit, and some after


def leave_a_write_half_done(path: Path) -> None:
    """Be killed while some changed pages are in the file already and the journal still says how it was before."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    (length,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    for position in range(length, length + 300):
        connection.execute("INSERT INTO entries VALUES (?, 'charge', '', ?, '')", (position, "{}" * 200))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_write_that_a_crash_interrupted_is_reported_by_readers_and_taken_back_by_writers(path: Path) -> None:
    head = written(path, events=3)
    assert status_of(start(lambda: leave_a_write_half_done(path))) == -signal.SIGKILL
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert "run.ledger-journal" in before
    report = verify(path)
    assert not report["intact"]
    assert "open it for writing once" in str(report["problem"])
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    with begin(path) as ledger:
        assert ledger.head == head
    assert verify(path)["intact"]


# No room on the disk


@contextmanager
def room_for_files_of(size: int) -> Iterator[None]:
    """No file can grow beyond the size meanwhile; reading and overwriting go on."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def charge_on(ledger: Ledger, releases: Releases) -> None:
    while True:
        ledger.charge(SMALL, reservation="run")
        releases.add()


@pytest.mark.parametrize("growth", [-(2**40), 0, 4097, 14_000])
def test_a_full_disk_releases_nothing_that_is_not_written(path: Path, releases: Releases, growth: int) -> None:
    with begin(path) as ledger:
        planned(ledger)
        size = max(0, path.stat().st_size + growth)
        with room_for_files_of(size), pytest.raises(LedgerUnwritable, match=r"free (some )?space"):
            charge_on(ledger, releases)
        ledger.charge(SMALL, reservation="run")  # as soon as there is room, the same connection goes on
        releases.add()
    charged = check(path, releases, 0)
    assert charged - releases.count() <= 1


def test_a_witness_that_cannot_be_written_stops_the_release(folder: Path) -> None:
    elsewhere = folder / "disk"
    elsewhere.mkdir()
    with begin(folder / "run.ledger", witness=elsewhere / "witness") as ledger:
        (elsewhere / "witness.part").mkdir()
        with pytest.raises(LedgerUnwritable, match="stays charged, but nothing may be released"):
            ledger.charge(SMALL)
        (elsewhere / "witness.part").rmdir()
        ledger.charge(SMALL)
        assert ledger.verify().charged == 2


# Races


def test_processes_that_spend_as_much_as_they_can_spend_the_budget_and_no_more(path: Path, releases: Releases) -> None:
    begin(path).close()

    def take() -> None:
        with begin(path) as ledger:
            while True:
                try:
                    ledger.charge(EVENT)
                except BudgetExceeded:
                    return
                releases.add()

    assert [status_of(process) for process in [start(take) for _ in range(4)]] == [0] * 4
    assert releases.count() == FITS
    check(path, releases, FITS)


def test_processes_that_priced_the_same_entries_do_not_all_spend_the_last_of_the_budget(
    path: Path, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four processes find at one time that their charge fits; two of them may write it, the others see the new sum."""
    with begin(path) as ledger:
        ledger.reserve([(EVENT, FITS - 2)], label="run")
    all_priced = get_context("fork").Barrier(4)
    priced: list[float] = []

    def slow(*given: Any, **asked: Any) -> Price:
        cost = price(*given, **asked)
        if not priced:
            priced.append(cost.epsilon)
            all_priced.wait(60)
        return cost

    monkeypatch.setattr(module, "quickly_within", lambda *_: False)
    monkeypatch.setattr(module, "price", slow)

    def take() -> None:
        with begin(path) as ledger:
            try:
                ledger.charge(EVENT)
            except BudgetExceeded:
                assert priced[0] <= ledger.budget.epsilon
            else:
                releases.add()

    assert [status_of(process) for process in [start(take) for _ in range(4)]] == [0] * 4
    assert releases.count() == 2
    monkeypatch.undo()
    with begin(path) as ledger:
        assert ledger.verify().charged == 2


def test_nobody_waits_for_a_price(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one handle computes a price, others write, and what they wrote is in the price that decides."""
    with begin(path) as slow, begin(path) as other:
        other.reserve([(SMALL, 2)], label="run")
        check = Ledger._check_budget
        checked: list[Ledger] = []

        def meanwhile(its: Ledger, total: Any) -> None:
            checked.append(its)
            if its is slow and len(checked) == 1:
                other.charge(EVENT)
            elif its is slow:
                other.charge(SMALL, reservation="run")  # which changes no sum, so nothing is priced again
            check(its, total)

        monkeypatch.setattr(module, "quickly_within", lambda *_: False)
        monkeypatch.setattr(Ledger, "_check_budget", meanwhile)
        assert slow.charge(EVENT).entry.position == 4
        assert checked == [slow, other, slow]
