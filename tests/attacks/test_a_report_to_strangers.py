"""A report goes to strangers: what somebody could plant in a folder or a ledger for it to tell, or to run, there.

Who would gain: a reader who wants what the operator keeps back, a colleague who writes into a shared ledger, whoever
hands the operator a folder that points elsewhere, and who wants the reader's browser to do something.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent

from incrowd.errors import DataError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.report.page import page
from incrowd.report.shown import read
from tests.privacy.ledgers import quick_folder
from tests.report import folders

PLANTED = "ward-7-patients-of-doctor-who"


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    with quick_folder() as place:
        yield folders.simulated(place / "run")


def test_labels_notes_keys_and_names_of_a_shared_ledger_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    budget = Budget(epsilon=8.0, delta=1e-5)
    event = GaussianDpEvent(10.0)
    with Ledger.open(
        path, budget=budget, relation=Relation.REPLACE_ONE, data_identity=f"/home/{PLANTED}/cohort.csv"
    ) as ledger:
        ledger.reserve([(event, 3)], label=PLANTED)
        ledger.charge(event, key=f"{PLANTED}: 1", note={"why": PLANTED, "round": 4}, reservation=PLANTED)
    told = json.dumps(read(path).to_json()) + page([read(path)])
    assert PLANTED in path.read_bytes().decode("latin-1")  # the control: it is in the ledger
    assert PLANTED not in told
    assert "cohort.csv" in told
    assert "round 5" in told


def test_a_folder_that_points_elsewhere_shows_nothing_of_there(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    planted = tmp_path / "planted"
    shutil.copytree(run, planted)
    for name in ("summary.json", "run.sqlite", "evaluation.json", "audit.json"):
        shutil.copytree(run, planted, dirs_exist_ok=True)
        (planted / name).unlink(missing_ok=True)
        (planted / name).symlink_to(other / name if (other / name).exists() else "/etc/passwd")
        with pytest.raises(DataError, match="no plain file"):
            read(planted)
        (planted / name).unlink()
    shutil.copytree(run, planted, dirs_exist_ok=True)
    assert read(planted).over  # the control: without the links it can be read


def test_a_ledger_that_is_pointed_at_is_not_shown_unless_it_is_the_run_s(run: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.sqlite"
    identity = f"{PLANTED}.csv"
    Ledger.open(
        theirs, budget=Budget(epsilon=1.0, delta=1e-5), relation=Relation.REPLACE_ONE, data_identity=identity
    ).close()
    planted = tmp_path / "planted"
    shutil.copytree(run, planted)
    payer = json.loads((planted / "ledger.json").read_text())
    (planted / "ledger.json").write_text(json.dumps(payer | {"path": str(theirs)}))
    assert read(planted).ledgers == [{"party": "", "problem": "another", "lines": []}]
    assert PLANTED in page([read(theirs)])  # the control: named by its owner it is


@pytest.mark.parametrize(
    "config", ["[]", "{}", "no JSON", '"<script>"', "[" * 100_000, '{"run": {}, "data": 3, "privacy": null}']
)
def test_settings_that_nobody_wrote_are_refused_by_the_folder_s_name(run: Path, tmp_path: Path, config: str) -> None:
    planted = tmp_path / "planted"
    shutil.copytree(run, planted)
    with closing(sqlite3.connect(planted / "run.sqlite")) as database, database:
        database.execute("UPDATE settings SET value = ? WHERE name = 'config'", (config,))
    with pytest.raises(DataError, match="planted"):
        read(planted)
