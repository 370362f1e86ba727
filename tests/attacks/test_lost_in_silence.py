"""Attack by nobody: an app writes its table a little differently, every row is lost, and the device pays for noise.

The owner is told before the first contribution, and again if it happens; the server never is, for whether a device
answers would be a question about its table that costs nothing.
"""

import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.drawdiscard import Device, Server, Specification
from incrowd.drawdiscard.device import NoExamplesWarning
from tests.drawdiscard.mail import LOOSE, charges

NUMBER = {"type": "number", "low": 0, "high": 10}
KEYS: dict[str, object] = {"name": "attack", "gamma": 0.05, "clip": 0.2, "epsilon": 2.0, "instances": 4}


def asked(x: Mapping[str, object], y: Mapping[str, object] | None = None) -> Specification:
    return Specification.from_formula("y ~ x", **{**KEYS, "fields": {"y": y or {"type": "boolean"}, "x": x}})


def table(path: Path, rows: Sequence[tuple[Any, Any]], columns: tuple[str, str] = ("y", "x")) -> Path:
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    with closing(sqlite3.connect(path)) as app, app:
        app.execute(f"CREATE TABLE examples ({names})")
        app.executemany("INSERT INTO examples VALUES (?, ?)", rows)
    return path


LEVELS = {"type": "category", "levels": ["1", "2"]}
TOLD: dict[str, tuple[Specification, list[tuple[Any, Any]], str]] = {
    "NumPy integers, which SQLite takes for blobs": (asked(NUMBER), [(np.int64(1), 3)], "y: 1 of 1 is no number"),
    "yes and no": (asked(NUMBER), [("yes", 3)], "y: 1 of 1 is no number (such as 'yes')"),
    "labels that are text": (asked(NUMBER), [("1", 3)], "y: 1 of 1 is no number (such as '1')"),
    "numbers that are text": (asked(NUMBER), [(1, "3")], "x: 1 of 1 is no number (such as '3')"),
    "levels in other letters": (asked(LEVELS), [(1, "One")], "x: 1 of 1 is none of the levels (such as 'One')"),
    "levels between whole numbers": (asked(LEVELS), [(1, 1.5)], "x: 1 of 1 is none of the levels (such as 1.5)"),
    "numbers out of range": (asked(NUMBER), [(1, 300)], "x: 1 of 1 lies beyond 0 to 10 (such as 300)"),
    "nothing": (asked(NUMBER), [(1, None)], "x: 1 of 1 is missing"),
}


@pytest.mark.parametrize("how", TOLD)
def test_the_owner_is_told_before_the_first_contribution(tmp_path: Path, how: str) -> None:
    specification, rows, line = TOLD[how]
    with Device(table(tmp_path / "app.sqlite", rows)) as own:
        fit = own.check(specification)
        assert any(problem.startswith(line) for problem in fit.problems), fit.problems
        assert fit.usable == (not line.startswith("y"))
        assert charges(own.ledger) == 0


@pytest.mark.parametrize("usable", [True, False])
def test_the_server_hears_the_same_and_the_owner_does_not(tmp_path: Path, usable: bool) -> None:
    """A specification can be made so that exactly the tables with some value have an example: an answer is no yes."""
    server = Server(asked(NUMBER), turned_away=1e-3)
    path = table(tmp_path / "app.sqlite", [(1 if usable else "yes", 3)])
    with Device(path, policy=LOOSE) as own, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            assert own.contribute(server).accepted
        assert charges(own.ledger) == 3
    assert [warning.category for warning in told] == ([] if usable else [NoExamplesWarning] * 3)


def test_a_warning_that_is_made_an_error_changes_nothing_for_the_server(tmp_path: Path) -> None:
    server = Server(asked(NUMBER), turned_away=1e-3)
    with Device(table(tmp_path / "app.sqlite", [("yes", 3)]), policy=LOOSE) as own:
        with pytest.raises(NoExamplesWarning):
            own.contribute(server)
        assert (server.accepted, charges(own.ledger), len(own._outbox)) == (1, 1, 0)
