"""Runs on tables by stated columns: settings, paths, test clients, names of silos."""

import json
from pathlib import Path
from typing import Any

import pytest

from incrowd.data import Category, Reading
from incrowd.errors import BudgetExceeded
from incrowd.runs.config import Config, parse, tables
from incrowd.runs.data_config import Table
from incrowd.runs.folder import export
from incrowd.runs.run import Run
from incrowd.runs.work import assemble

pytestmark = pytest.mark.usefixtures("one_thread")

COLUMNS = {"age": {"range": [0, 100], "missing": 50}, "sex": {"levels": ["f", "m"]}, "note": "ignore"}
DIED = ("yes", "no", "no")


def rows(first: int = 0, wards: tuple[str, ...] = ("000", "001", "002", "003", "004", "005")) -> str:
    """Sixty patients, taken in turns; those whose ages begin with another one are other people."""
    ages = ["" if place == 7 + first else f"{place + first / 10:g}" for place in range(60)]
    lines = [
        f"{wards[place % len(wards)]};{age};x y ;{'fm'[place % 2]};{DIED[place % 3]}" for place, age in enumerate(ages)
    ]
    return "\n".join(["ward;age;note;sex;died", *lines]) + "\n"


def config(folder: Path, table: str, *, privacy: dict[str, Any] | None = None, **data: Any) -> Config:
    """Settings for this table of wards."""
    (folder / "ward.csv").write_text(table)
    stated = {"name": "table", "folder": str(folder), "file": "ward.csv", "client": "ward", "label": "died"}
    meaning = {"classes": ["no", "yes"], "delimiter": ";", "columns": COLUMNS}
    budget = {"epsilon": 8.0, "delta": 1e-3, "rounds": 2}
    return parse({"data": {**stated, **meaning, "clients": 6, **data}, "privacy": privacy or budget, "run": {}})


def test_settings_state_what_columns_mean(tmp_path: Path) -> None:
    found = config(tmp_path, rows())
    assert isinstance(found.data, Table)
    meaning = found.data.meaning()
    assert meaning.schema["sex"] == Category(levels=("f", "m"))
    assert meaning.reading == Reading(delimiter=";")
    assert parse(found.model_dump_json()) == found
    assert assemble(found).data.examples.shape == (3,)


PATHS = """
[data]
name = "table"
file = "a/ward.csv"
test_file = "../test.csv"
client = "ward"
label = "died"
clients = 6
[features]
name = "unit"
cache = "cache"
[privacy]
epsilon = 1.0
delta = 1e-5
ledger = "ledgers/own.sqlite"
witness = "../witness"
"""
SEEN = {
    "data.file": "a/ward.csv",
    "data.test_file": "../test.csv",
    "features.cache": "cache",
    "privacy.ledger": "ledgers/own.sqlite",
    "privacy.witness": "../witness",
}


def paths_in(found: dict[str, Any]) -> dict[str, str]:
    named = {f"{name}.{key}": value for name, section in found.items() for key, value in section.items()}
    return {key: str(Path(named[key]).resolve()) for key in SEEN}


def test_every_path_is_seen_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, here = tmp_path / "inner", tmp_path / "here"
    inner.mkdir()
    here.mkdir()
    (inner / "s.toml").write_text(PATHS)
    for place, given in ((here, "../inner/s.toml"), (inner, "s.toml"), (tmp_path, "inner/s.toml")):
        monkeypatch.chdir(place)
        assert paths_in(tables(given)) == {key: str((inner / path).resolve()) for key, path in SEEN.items()}
    monkeypatch.chdir(here)
    overrides = [f"{key}='{path}'" for key, path in SEEN.items()]
    found = paths_in(tables("../inner/s.toml", overrides=overrides))
    assert found == {key: str((here / path).resolve()) for key, path in SEEN.items()}
    for moved in (tables("../inner/s.toml", data="sets"), tables("../inner/s.toml", overrides=["data.folder=sets"])):
        assert (moved["data"]["folder"], moved["data"]["file"]) == (str(here / "sets"), "a/ward.csv")
    (inner / "s.toml").write_text(PATHS.replace("[data]", '[data]\nfolder = "sets"'))
    stated = tables("../inner/s.toml")["data"]
    assert (stated["folder"], stated["file"]) == (str(inner / "sets"), "a/ward.csv")


def test_a_summary_has_what_people_report(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text(rows(1, ("100",)))
    found = Run.create(config(tmp_path, rows(), test_file="test.csv"), tmp_path / "run").train()
    assert found["metrics"]["accuracy"] == found["accuracy"]
    assert [row["support"] for row in found["metrics"]["per_class"]] == [40, 20]
    assert found["metrics"]["baseline"]["accuracy"] == pytest.approx(2 / 3)
    assert found["test_set"] == "60 examples, public: held by the server, not by any client"
    export(tmp_path / "run", tmp_path / "out")
    shown, settings = (json.loads((tmp_path / f"out/{name}.json").read_text()) for name in ("summary", "settings"))
    assert shown["metrics"] == found["metrics"]
    assert "ward.csv" not in json.dumps(settings)
    assert settings["data"]["columns"]["sex"] == {"levels": ["f", "m"]}


SILOS = ("North", "st-south")


def of_silos(folder: Path, **data: Any) -> Config:
    privacy = {"unit": "record", "epsilon": 8.0, "delta": 1e-3, "rounds": 1, "records": 31}
    return config(folder, rows(wards=SILOS), privacy=privacy, clients=2, **data)


def test_silos_keep_their_names_where_these_are_stated(tmp_path: Path) -> None:
    summary = Run.create(of_silos(tmp_path, names=SILOS), tmp_path / "run").train()
    assert set(summary["epsilon_by_silo"]) == set(SILOS)
    assert summary["statement"]["text"].startswith("North, st-south may claim:")
    assert {path.name for path in (tmp_path / "run" / "silos").iterdir()} == set(SILOS)
    assert Run.open(tmp_path / "run").train()["epsilon_by_silo"] == summary["epsilon_by_silo"]


def test_the_ledger_of_a_silo_does_not_hang_on_its_name(tmp_path: Path) -> None:
    """A silo that is called by its name, where it had a number before, has spent what it has spent."""
    Run.create(of_silos(tmp_path), tmp_path / "run").train()
    with pytest.raises(BudgetExceeded):
        Run.create(of_silos(tmp_path, names=SILOS), tmp_path / "other")
