"""Attack: what a table's settings, template, errors and results tell about the rows of those who are to be protected.

A schema that was looked up in the rows, a test table of those who train and a name on a folder each tell who is there.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.data import Clients, Columns, columns_of, read_table
from incrowd.data.columns import read_header, template
from incrowd.data.reading import Reading
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, LedgerMismatch
from incrowd.runs.config import parse
from incrowd.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEMA = {"age": {"range": [0, 100], "missing": 50, "indicator": True}, "sex": {"levels": ["f", "m"], "other": True}}
WARD = Columns(client="patient", label="died", classes=2, schema=columns_of(SCHEMA))
HEADER = "patient,age,sex,died"
KNOWN = [f"p{place % 9},{20 + place},{'fm'[place % 2]},{place % 2}" for place in range(36)]
RARE = "p8,,intersex,1"
"""One row more: a level that nobody else has, and the only age that is missing."""


def write(folder: Path, rows: list[str], name: str = "ward.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_what_the_others_become_does_not_tell_whether_a_row_is_there(tmp_path: Path) -> None:
    with_it, _ = read_table(write(tmp_path, [*KNOWN, RARE]), WARD)
    without, _ = read_table(write(tmp_path, KNOWN), WARD)
    assert with_it.shape == without.shape
    assert (with_it.features[:-1] == without.features).all()


def test_control_a_schema_that_is_looked_up_tells(tmp_path: Path) -> None:
    """Levels, a mean to impute and a range to scale by, as scikit-learn would find them in the rows."""
    seen: list[Any] = []
    for rows in (KNOWN, [*KNOWN, RARE, "p8,99,f,0"]):
        cells = [line.split(",") for line in rows]
        ages = np.array([float(age) for _, age, *_ in cells if age])
        schema = {
            "age": {"range": [float(ages.min()), float(ages.max())], "missing": float(ages.mean())},
            "sex": {"levels": sorted({sex for _, _, sex, _ in cells})},
        }
        columns = Columns(client="patient", label="died", classes=2, schema=columns_of(schema))
        seen.append(read_table(write(tmp_path, rows), columns)[0])
    assert seen[0].shape != seen[1].shape
    assert (seen[0].features[:, 0] != seen[1].features[:36, 0]).any()


def test_a_template_tells_nothing_but_the_header(tmp_path: Path) -> None:
    written = set()
    for rows in (KNOWN, [*KNOWN, RARE], [], ["\x00\x01;;;"]):
        path = write(tmp_path, rows)
        written.add(template(path, read_header(path), seen="ward.csv"))
    assert len(written) == 1
    other = tmp_path / "ward.csv"
    other.write_text("patient,hiv,died\n")
    assert template(other, read_header(other), seen="ward.csv") not in written  # the control: a header does tell


def refused(rows: list[str], folder: Path, **how: Any) -> str:
    test = write(folder, ["p3,30,f,1", "q1,40,m,0"], "test.csv")
    try:
        Clients.from_table(write(folder, rows), columns=WARD, test=test, **how)
    except IncrowdError as error:
        return str(error)
    return "taken"


def test_test_clients_who_train_are_neither_named_nor_counted(tmp_path: Path) -> None:
    one = refused(KNOWN, tmp_path, clients=9)
    more = refused([row.replace("p4", "q1") for row in KNOWN], tmp_path, clients=9)
    assert one == more != "taken"
    assert "p3" not in one
    public = refused(KNOWN, tmp_path, public=True)
    assert "p3" in public  # the control: whom nothing hides is named


def test_names_that_do_not_fit_tell_no_others(tmp_path: Path) -> None:
    path = write(tmp_path, KNOWN)
    said = set()
    for names in (("p0",), (*(f"p{place}" for place in range(9)), "p9")):
        with pytest.raises(ConfigError, match="these are not the clients in the table") as error:
            Clients.from_table(path, columns=WARD, clients=9, names=names)
        said.add(error.value.remedy)
    assert len(said) == 1
    assert "p1" not in said.pop()


def config(path: Path, **data: Any) -> Any:
    terms = {"epsilon": 4.0, "delta": 1e-3, "rounds": 1}
    table = {"name": "table", "file": str(path), "client": "patient", "label": "died", "classes": 2, "clients": 10}
    run = {"randomness": "seeded", "seed": 7}
    return parse({"data": table | {"columns": SCHEMA} | data, "privacy": terms, "run": run})


def test_another_spelling_of_the_same_table_is_charged_to_the_same_ledger(tmp_path: Path) -> None:
    """Who saves a private table with semicolons and decimal commas does not get a second budget."""
    rows = [row.replace(",", ".5,", 2).replace(".5,", ",", 1) for row in KNOWN]
    Run.create(config(write(tmp_path, rows)), tmp_path / "run").train()
    german = tmp_path / "german.csv"
    german.write_text("\n".join([HEADER, *reversed(rows)]).replace(",", ";").replace(".", ","))
    again = config(german, delimiter=";", decimal=",", identity="another")
    with pytest.raises((BudgetExceeded, LedgerMismatch)):
        Run.create(again, tmp_path / "second")


def test_an_id_that_is_spelt_in_two_ways_is_refused_rather_than_made_two_clients(tmp_path: Path) -> None:
    """A client whose rows are given to two names could be heard twice as loudly as is paid for."""
    with pytest.raises(DataError, match="blanks around it"):
        read_table(write(tmp_path, ["p1,30,f,1", "p1 ,31,f,1"]), WARD)
    kept = Columns(client="patient", label="died", classes=2, schema=WARD.schema, reading=Reading(blanks="keep"))
    assert set(read_table(tmp_path / "ward.csv", kept)[1].tolist()) == {"p1", "p1 "}  # the control
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"patient": [7, 7.0, "7"], "age": 30, "sex": "f", "died": 1}, dtype=object)
    assert set(read_table(frame, WARD)[1].tolist()) == {"7"}


def test_names_are_not_shown() -> None:
    """Neither a representation nor a description of the data has a name in it."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"patient": ["Ada", "Bea"], "age": 30, "sex": "f", "died": 1})
    data = Clients.from_table(frame, columns=WARD, clients=2)
    assert data.owners == ("Ada", "Bea")
    assert "Ada" not in repr(data) + json.dumps(data.describe())
