import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from incrowd.errors import DataError
from incrowd.runs import database
from incrowd.runs.database import Database, Record
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import killed_at

RECORD = Record(round=3, epsilon=1.5, seconds=0.25, clients_per_second=400.0, accuracy=0.5, loss=1.25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def test_settings_and_rounds_are_still_there_after_closing(path: Path) -> None:
    settings = {"config": {"a": [1, 2.5, None]}, "chunk": 8}
    seen = Record(
        round=1, epsilon=0.1, seconds=1.0, clients_per_second=1.0, lost=True, simulation={"observed": {"dropped": 2}}
    )
    first = Database(path)
    first.write_settings(settings)
    first.add(RECORD)
    first.add(seen)
    first.close()
    second = Database(path)
    assert second.settings == settings
    assert second.rounds() == [seen, RECORD]
    second.close()


def test_any_thread_may_collect_one_that_nobody_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose thread the collector happens to run in is nobody's choice."""
    failures: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    held = [Database(path)]
    collector = Thread(target=held.clear)
    collector.start()
    collector.join()
    assert failures == []
    again = Database(path)
    assert again.rounds() == []
    again.close()


def test_a_round_that_is_added_again_replaces_itself(path: Path) -> None:
    store = Database(path)
    store.add(RECORD)
    again = Record(round=3, epsilon=1.5, seconds=9.0, clients_per_second=1.0)
    store.add(again)
    assert store.rounds() == [again]
    store.close()


def test_the_file_is_open_to_anyone(path: Path) -> None:
    store = Database(path)
    store.add(RECORD)
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("SELECT round, epsilon, accuracy, lost FROM rounds").fetchall() == [(3, 1.5, 0.5, 0)]
    connection.close()


def test_what_is_no_database_of_a_run_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(DataError, match="is not the database of a run"):
        Database(path)


def test_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    Database(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DataError, match="is of version 99: this incrowd knows 3; update it"):
        Database(path)


def test_an_older_version_is_brought_up_to_date_and_keeps_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Database(path)
    store.add(RECORD)
    store.close()
    monkeypatch.setattr(database, "MIGRATIONS", list(database.MIGRATIONS))

    @database.migration
    def _notes(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE notes (text TEXT)")

    store = Database(path)
    assert store.rounds() == [RECORD]
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
        assert connection.execute("SELECT * FROM notes").fetchall() == []
    connection.close()


def test_rounds_of_the_first_version_know_no_silos(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MIGRATIONS", database.MIGRATIONS[:1])
    Database(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO rounds VALUES (3, 1.5, 2.0, 4.0, NULL, NULL, NULL, NULL, 0, NULL)")
    connection.close()
    monkeypatch.undo()
    store = Database(path)
    (old,) = store.rounds()
    assert (old.round, old.epsilon, old.silos) == (3, 1.5, None)
    silos = [{"silo": "north", "epsilon": 1.0}]
    store.add(replace(old, round=4, silos=silos))
    assert store.rounds()[1].silos == silos
    store.close()


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MIGRATIONS", list(database.MIGRATIONS))

    @database.migration
    def _broken(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (text TEXT)")
        connection.execute("no such statement")

    with pytest.raises(DataError, match="syntax error"):
        Database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()


@pytest.mark.slow
def test_a_process_killed_at_any_line_leaves_all_settings_or_none(path: Path) -> None:
    settings = {"one": 1, "two": 2}

    def work() -> None:
        store = Database(path)
        store.write_settings(settings)
        store.close()

    statuses = []
    for line in range(1, 200):
        path.unlink(missing_ok=True)
        statuses.append(status_of(start(lambda: killed_at("/runs/database.py", line, work))))  # noqa: B023 - waited for
        store = Database(path)
        assert store.settings in ({}, settings)
        store.close()
        if statuses[-1] == 0:
            break
    assert statuses[-1] == 0
    assert len(statuses) > 15
