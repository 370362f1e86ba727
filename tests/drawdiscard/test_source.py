import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.source import InMemoryTable, SqliteTable
from incrowd.errors import ConfigError
from tests.statistics import ODD, chi_square

STREAM = SeededRandomness(seed=2).stream


def app(path: Path, *statements: str) -> Path:
    """What some app keeps on the device."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return app(
        tmp_path / "phone.db",
        'CREATE TABLE visits (x INTEGER, "odd ""name"" ; --" TEXT, rowid TEXT)',
        "CREATE VIEW recent AS SELECT x AS y FROM visits WHERE x > 2",
        "INSERT INTO visits VALUES (0, 'a', 'r'), (1, 'b', 's'), (2, 'c', 't')",
        "INSERT INTO visits VALUES (3, 'd', 'u'), (4, NULL, 'v'), (5, 'f', 'w')",
    )


@pytest.fixture
def visits(path: Path) -> Iterator[SqliteTable]:
    with closing(SqliteTable(path, "visits")) as table:
        yield table


def test_any_table_and_any_column_can_be_read(visits: SqliteTable) -> None:
    odd = 'odd "name" ; --'
    assert visits.columns == ("x", odd, "rowid")
    assert visits.read([odd, "rowid"]) == {odd: ["a", "b", "c", "d", None, "f"], "rowid": list("rstuvw")}
    assert visits.read([]) == {}


def test_the_file_is_never_changed(path: Path, visits: SqliteTable) -> None:
    before = path.read_bytes()
    visits.sample(["x"], most=3, stream=STREAM("examples"))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        visits._connection.execute("DELETE FROM visits")
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_sample_is_random_and_no_larger_than_asked(visits: SqliteTable, kind: str) -> None:
    source = visits if kind == "file" else InMemoryTable({"x": range(6)})
    counts = np.zeros(6, int)
    for number in range(600):
        found = source.sample(["x"], most=2, stream=STREAM("examples", number))["x"]
        assert len(set(found)) == 2
        counts[np.array(found, int)] += 1
    assert chi_square(counts, np.ones(6)) > ODD
    assert chi_square(counts + np.array([150, 0, 0, 0, 0, 0]), np.ones(6)) < ODD


@pytest.mark.parametrize("name", ["Z", 'x" FROM visits; --', "*", ""])
def test_no_text_but_a_column_s_name_reaches_sql(visits: SqliteTable, name: str) -> None:
    for source in (visits, InMemoryTable({"x": [1]})):
        with pytest.raises(ConfigError, match="column"):
            source.sample([name], most=1, stream=STREAM("examples"))
