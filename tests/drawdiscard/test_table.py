import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.table import ExampleTable, Kind
from incrowd.errors import ConfigError, DataError
from tests.drawdiscard.known_weights import COLUMNS, rows
from tests.statistics import ODD, chi_square

STREAM = SeededRandomness(seed=2).stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device.db"


def test_examples_are_kept(path: Path) -> None:
    with ExampleTable(path, columns=COLUMNS) as table:
        table.add(rows(5))
    with ExampleTable(path) as again:
        assert again.columns == tuple(COLUMNS)
        assert again.count() == 5
        found = again.sample(["I", "O"], most=100, stream=STREAM("examples"))
    kept = sorted((row["I"], row["O"]) for row in rows(5))
    assert sorted(zip(found["I"], found["O"], strict=True)) == kept


def test_what_a_row_does_not_mention_is_missing(path: Path) -> None:
    with ExampleTable(path, columns=COLUMNS) as table:
        table.add([{"B": 1}, {}][:1])
        assert table.sample(["B", "E1"], most=1, stream=STREAM("examples")) == {"B": [1], "E1": [None]}


def test_a_sample_is_random_and_no_larger_than_asked(path: Path) -> None:
    with ExampleTable(path, columns={"x": "INTEGER"}) as table:
        table.add([{"x": number} for number in range(6)])
        counts = np.zeros(6, int)
        for number in range(600):
            found = table.sample(["x"], most=2, stream=STREAM("examples", number))["x"]
            assert len(set(found)) == 2
            counts[np.array(found, int)] += 1
    assert chi_square(counts, np.ones(6)) > ODD
    assert chi_square(counts + np.array([150, 0, 0, 0, 0, 0]), np.ones(6)) < ODD


def test_an_empty_table_gives_empty_columns(path: Path) -> None:
    with ExampleTable(path, columns=COLUMNS) as table:
        assert table.sample(["O", "D"], most=3, stream=STREAM("examples")) == {"O": [], "D": []}


def test_text_in_another_encoding_is_read(path: Path) -> None:
    with ExampleTable(path, columns={"x": "TEXT"}):
        pass
    with closing(sqlite3.connect(path)) as app, app:
        app.execute("INSERT INTO examples VALUES (CAST(x'fffe41' AS TEXT))")
    with ExampleTable(path) as table:
        (found,) = table.sample(["x"], most=1, stream=STREAM("examples"))["x"]
    assert str(found).endswith("A")


def test_only_the_owner_may_read_it(path: Path) -> None:
    with ExampleTable(path, columns=COLUMNS):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rows_are_added_together_or_not_at_all(path: Path) -> None:
    with ExampleTable(path, columns=COLUMNS) as table:
        with pytest.raises(ConfigError, match="the table has O, B"):
            table.add([{"O": 1}, {"O": 1, "Z": 2}])
        assert table.count() == 0


@pytest.mark.parametrize("name", ["Z", 'O" FROM examples; --', "*", "", "rowid"])
def test_no_text_but_a_column_s_name_reaches_sql(path: Path, name: str) -> None:
    with ExampleTable(path, columns=COLUMNS) as table:
        table.add(rows(2))
        with pytest.raises(ConfigError, match="column"):
            table.sample([name], most=1, stream=STREAM("examples"))
        with pytest.raises(ConfigError, match="column"):
            table.add([{name: 1}])
        assert table.count() == 2


@pytest.mark.parametrize(
    "columns", [{}, {'x" INTEGER); --': "TEXT"}, {"x": "BLOB"}, {"1x": "TEXT"}, {"x" * 65: "TEXT"}]
)
def test_impossible_columns_are_refused(path: Path, columns: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="columns"):
        ExampleTable(path, columns=columns)


def test_files_that_are_no_tables_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="give its columns"):
        ExampleTable(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="no table examples"):
        ExampleTable(path)
    path.write_text("not a database, whatever its name says" * 100)
    with pytest.raises(DataError, match="cannot be used"):
        ExampleTable(path)


def test_a_table_that_is_there_stays_as_it_is(path: Path) -> None:
    other: dict[str, Kind] = {"z": "TEXT"}
    with ExampleTable(path, columns=COLUMNS) as table:
        table.add(rows(1))
    with ExampleTable(path, columns=other) as again:
        assert again.columns == tuple(COLUMNS)
        assert again.count() == 1


def test_one_at_a_time_has_the_table_to_itself(path: Path) -> None:
    with ExampleTable(path, columns=COLUMNS) as first, ExampleTable(path) as second:
        order: list[str] = []

        def wait_for_the_first() -> None:
            with second.exclusive():
                order.append("second")

        thread = threading.Thread(target=wait_for_the_first)
        with first.exclusive():
            thread.start()
            thread.join(timeout=0.2)
            order.append("first")
        thread.join()
    assert order == ["first", "second"]
