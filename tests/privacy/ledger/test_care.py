"""Ledgers that are moved, kept as copies, put back and begun afresh; and processes that are killed in the middle."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from incrowd.errors import ConfigError, IncrowdError, LedgerError, LedgerMismatch, LedgerMisplaced, LedgerRolledBack
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger import home as ledgers
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.ledger.registry import Registered
from tests.privacy.ledger.test_home import data, found
from tests.privacy.ledgers import BUDGET, RELATION, SMALL, start, status_of
from tests.runs.kills import killed_at


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("INCROWD_STATE", str(folder / "state"))
    return Home.of_user()


@pytest.fixture
def known(home: Home) -> Registered:
    """A ledger with one charge."""
    charge(found(home, data()).path)
    return home.ledgers()[0]


def charge(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(SMALL)


def entries(path: Path) -> int:
    with Ledger.open(path) as ledger:
        return len(ledger.entries())


# Moved


def test_a_ledger_moves_with_its_witness_and_is_found_there(home: Home, known: Registered, folder: Path) -> None:
    moved = ledgers.move(home, known.path, folder / "new.sqlite")
    assert (moved.path, moved.witness) == (folder / "new.sqlite", folder / "new.sqlite.witness")
    assert not list(known.path.parent.iterdir())
    charge(found(home, data()).path)
    assert entries(folder / "new.sqlite") == 3
    shutil.copy(folder / "new.sqlite", known.path)  # what a move leaves that is cut off before its end
    for _ in range(2):
        assert ledgers.move(home, known.path, folder / "new.sqlite") == home.at(folder / "new.sqlite")
        assert not known.path.exists()


def test_a_witness_moves_alone_and_stays_where_it_was_put(home: Home, known: Registered, folder: Path) -> None:
    moved = ledgers.move(home, known.path, known.path, witness=folder / "witness")
    assert (moved.path, moved.witness) == (known.path, folder / "witness")
    assert not known.witness.exists()
    assert ledgers.move(home, known.path, known.path, witness=folder / "witness").witness.exists()
    charge(known.path)
    moved = ledgers.move(home, known.path, folder / "new.sqlite")
    assert moved.witness == folder / "witness"
    assert entries(moved.path) == 3


def test_a_ledger_that_was_moved_by_hand_is_taken_up_if_nothing_is_missing(
    home: Home, known: Registered, folder: Path
) -> None:
    shutil.copy(known.path, folder / "old.sqlite")
    charge(known.path)
    known.path.rename(folder / "new.sqlite")
    for moved, error in (("old.sqlite", LedgerRolledBack), ("none.sqlite", ConfigError)):
        with pytest.raises(error):
            ledgers.move(home, known.path, folder / moved)
    Ledger.open(folder / "other.sqlite", budget=BUDGET, relation=RELATION, data_identity="x").close()
    with pytest.raises(LedgerMismatch, match="is not the ledger that was at"):
        ledgers.move(home, known.path, folder / "other.sqlite")
    ledgers.move(home, known.path, folder / "new.sqlite")
    assert entries(found(home, data()).path) == 3


def test_nothing_in_the_way_is_replaced(home: Home, known: Registered, folder: Path) -> None:
    second = found(home, data("two", "1:bb"), folder / "two.sqlite")
    with pytest.raises(ConfigError, match="another ledger belongs there"):
        ledgers.move(home, known.path, second.path)
    (folder / "notes.txt").write_text("notes")
    with pytest.raises(ConfigError, match="there is another file"):
        ledgers.move(home, known.path, folder / "notes.txt")
    with pytest.raises(ConfigError, match="no such ledger is registered"):
        ledgers.move(home, folder / "notes.txt", folder / "new.sqlite")
    assert (folder / "notes.txt").read_text() == "notes"


@pytest.mark.parametrize("stride", [83, pytest.param(7, marks=pytest.mark.slow)])
def test_a_move_that_is_killed_leaves_one_ledger_and_goes_on(
    home: Home, known: Registered, folder: Path, stride: int
) -> None:
    """One file, and only one, can be charged at any moment; the same command brings the move to its end."""
    source, status, line = known.path, -signal.SIGKILL, 1
    while status == -signal.SIGKILL:
        target = folder / f"moved-{line}" / "ledger.sqlite"
        target.parent.mkdir(mode=0o700)
        work = lambda: ledgers.move(home, source, target)  # noqa: B023, E731 - waited for
        status = status_of(start(lambda: killed_at("/incrowd/privacy/ledger/", line, work)))  # noqa: B023 - waited for
        usable = 0
        for path in (source, target):
            try:
                usable += path.exists() and entries(path) == 2
            except LedgerError:
                assert path.exists()
        assert usable == 1
        assert ledgers.move(home, source, target).path == target
        assert not source.exists()
        assert entries(found(home, data()).path) == 2
        source, line = target, line + stride
    assert status == 0
    assert line > 100


# Kept as a copy, and put back


def test_a_backup_cannot_be_charged_and_puts_a_lost_ledger_back(known: Registered, folder: Path) -> None:
    copy = folder / "backup.sqlite"
    mark = ledgers.backup(known.path, copy)
    assert (mark.entries, copy.stat().st_mode & 0o777) == (2, 0o600)
    for opened in (Ledger.open, Ledger.read):
        with pytest.raises(LedgerMisplaced, match="is a backup"):
            opened(copy)
    with pytest.raises(ConfigError, match="it is there already"):
        ledgers.backup(known.path, copy)
    with pytest.raises(ConfigError, match="it is still there"):
        ledgers.restore(copy, known.path)
    for lost in ([known.path], [known.path, known.witness]):  # the registry remembers, too
        for path in lost:
            path.unlink()
        assert ledgers.restore(copy, known.path) == mark
        assert entries(known.path) == 2


def test_an_old_backup_is_not_put_back(known: Registered, folder: Path) -> None:
    ledgers.backup(known.path, folder / "backup.sqlite")
    charge(known.path)
    known.path.unlink()
    for missing in (None, known.witness):
        if missing is not None:
            missing.unlink()
        with pytest.raises(LedgerRolledBack, match="saw 3"):
            ledgers.restore(folder / "backup.sqlite", known.path)
        assert not known.path.exists()
    assert [path.name for path in known.path.parent.iterdir()] == []


def test_of_a_ledger_that_nobody_registered_a_backup_needs_the_witness(folder: Path) -> None:
    path = folder / "ledger"
    with Ledger.open(path, budget=BUDGET, relation=RELATION, data_identity="x") as ledger:
        ledger.charge(SMALL)
    ledgers.backup(path, folder / "backup")
    path.unlink()
    ledgers.restore(folder / "backup", path)
    path.unlink()
    (folder / "ledger.witness").unlink()
    with pytest.raises(LedgerRolledBack, match="lost its witness"):
        ledgers.restore(folder / "backup", path)
    (folder / "notes.txt").write_text("notes" * 500)
    with pytest.raises(LedgerError):
        ledgers.restore(folder / "notes.txt", path)


# Begun afresh


def test_a_fresh_start_names_what_it_forgets_each_time(home: Home, known: Registered) -> None:
    half = Budget(epsilon=0.5, delta=1e-5)
    first = ledgers.fresh(home, known, budget=half)
    second = ledgers.fresh(home, first, budget=half)
    with Ledger.open(second.path) as ledger:
        assert [(each.ledger, each.entries) for each in ledger.forgets] == [(known.id, 2), (first.id, 1)]
        assert ledger.forgets[0].epsilon == verify(known.path)["epsilon"] != 0
        assert ledger.budget == half
    assert found(home, data("new name"), budget=half).id == second.id
    with pytest.raises(LedgerMisplaced, match="deliberate fresh start"):
        Ledger.open(known.path)
    assert verify(known.path)["intact"]
    with pytest.raises(ConfigError, match="closed by a fresh start already"):
        ledgers.fresh(home, home.by_id(known.id) or known, budget=half)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_ledger_can_be_followed_by_a_fresh_one(home: Home, known: Registered, damaged: bool) -> None:
    if damaged:
        known.path.write_bytes(b"damaged" * 1000)
    else:
        known.path.unlink()
    with pytest.raises(ConfigError, match="cannot be read: state it"):
        ledgers.fresh(home, known, budget=BUDGET)
    begun = ledgers.fresh(home, known, budget=BUDGET, relation=RELATION)
    with Ledger.open(begun.path) as ledger:
        (forgotten,) = ledger.forgets
    assert (forgotten.entries, forgotten.epsilon) == (2, None)


# Many at once


@pytest.mark.parametrize("stride", [127, pytest.param(13, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_begins_a_ledger_leaves_what_the_next_one_finds(folder: Path, stride: int) -> None:
    status, line = -signal.SIGKILL, 1
    while status == -signal.SIGKILL:
        home = Home(folder / f"state-{line}")
        os.environ["INCROWD_STATE"] = str(home.folder)  # put back by the fixture of all tests
        work = lambda: (home.key(), found(home, data()))  # noqa: B023, E731 - waited for
        status = status_of(start(lambda: killed_at("/incrowd/privacy/ledger/", line, work)))  # noqa: B023 - waited for
        assert len(home.key()) == 32
        first = found(home, data())
        assert found(home, data("other name")).id == first.id
        charge(first.path)
        assert len(home.ledgers()) == 1
        line += stride
    assert status == 0
    assert line > 200


def test_processes_that_ask_at_once_get_one_ledger(home: Home) -> None:
    def work() -> None:
        charge(found(home, data()).path)

    processes = [start(work) for _ in range(6)]
    assert [status_of(process) for process in processes] == [0] * 6
    (known,) = home.ledgers()
    assert known.mark.entries == 7
    assert entries(known.path) == 7
    with pytest.raises(IncrowdError):
        Ledger.open(known.path, budget=Budget(epsilon=9.0, delta=1e-5))
