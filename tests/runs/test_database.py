import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from incrowd.errors import DataError
from incrowd.runs.folder import Database, Record
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


def test_a_round_that_is_added_again_replaces_itself(path: Path) -> None:
    store = Database(path)
    store.add(RECORD)
    again = Record(round=3, epsilon=1.5, seconds=9.0, clients_per_second=1.0)
    store.add(again)
    assert store.rounds() == [again]
    store.close()


def test_what_is_no_database_of_a_run_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(DataError, match="is not the database of a run"):
        Database(path)


def test_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    Database(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DataError, match="is of version 99, and this incrowd writes 3"):
        Database(path)


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
        statuses.append(status_of(start(lambda: killed_at("/runs/folder.py", line, work))))  # noqa: B023 - waited for
        store = Database(path)
        assert store.settings in ({}, settings)
        store.close()
        if statuses[-1] == 0:
            break
    assert statuses[-1] == 0
    assert len(statuses) > 15
