"""Runs on tables by stated columns: settings, paths, test clients, names of silos."""

import json
from pathlib import Path
from typing import Any

import pytest

from incrowd.data import Category, Reading
from incrowd.errors import BudgetExceeded
from incrowd.runs.config import Config, load, parse, tables
from incrowd.runs.data_config import Table
from incrowd.runs.export import export
from incrowd.runs.run import Run
from incrowd.runs.work import assemble

pytestmark = pytest.mark.usefixtures("one_thread")

COLUMNS = '[data.columns]\nage = {range = [0, 100], missing = 50}\nsex = {levels = ["f", "m"]}\nnote = "ignore"\n'


DIED = ("yes", "no", "no")


def age(place: int, first: int) -> str:
    """Those of a ward: other wards, whose first patient is another one, have other people."""
    return "" if place == 7 + first // 100 else f"{place + first / 1000:g}"


def rows(first: int = 0, clients: int = 6) -> str:
    lines = [
        f"{first + place % clients:03};{age(place, first)};x y ;{'fm'[place % 2]};{DIED[place % 3]}"
        for place in range(60)
    ]
    return "\n".join(["ward;age;note;sex;died", *lines]) + "\n"


def write(folder: Path, data: str = "", *, privacy: str = "epsilon = 8.0\ndelta = 1e-3\nrounds = 2") -> Path:
    """Settings in a folder of their own, the tables beside it."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "settings").mkdir(exist_ok=True)
    (folder / "tables" / "ward.csv").write_text(rows())
    (folder / "tables" / "test.csv").write_text(rows(100))
    (folder / "tables" / "shared.csv").write_text(rows(5))
    path = folder / "settings" / "ward.toml"
    path.write_text(
        '[data]\nname = "table"\nfile = "../tables/ward.csv"\nclient = "ward"\nlabel = "died"\n'
        f'classes = ["no", "yes"]\ndelimiter = ";"\n{data}\n{COLUMNS}\n[privacy]\n{privacy}\n[run]\n'
    )
    return path


SIX = "clients = 6"


def test_settings_state_what_columns_mean(tmp_path: Path) -> None:
    config = load(write(tmp_path, SIX))
    assert isinstance(config.data, Table)
    meaning = config.data.meaning()
    assert meaning.schema["sex"] == Category(levels=("f", "m"))
    assert meaning.reading == Reading(delimiter=";")
    assert parse(config.model_dump_json()) == config
    assert assemble(config).data.examples.shape == (3,)


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


def test_the_files_of_a_table_are_seen_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "s.toml").write_text(PATHS)
    monkeypatch.chdir(tmp_path)
    for found, folder in (
        (tables("inner/s.toml", data="given"), tmp_path / "given"),
        (tables("inner/s.toml", overrides=["data.folder=given"]), tmp_path / "given"),
    ):
        assert found["data"]["folder"] == str(folder)
        assert found["data"]["file"] == "a/ward.csv"
    (inner / "s.toml").write_text(PATHS.replace("[data]", '[data]\nfolder = "sets"'))
    stated = tables("inner/s.toml")["data"]
    assert (stated["folder"], stated["file"]) == (str(inner / "sets"), "a/ward.csv")


def summary_of(config: Config, folder: Path) -> dict[str, Any]:
    Run.create(config, folder).train()
    found = json.loads((folder / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def test_a_summary_has_what_people_report(tmp_path: Path) -> None:
    found = summary_of(load(write(tmp_path, SIX + '\ntest_file = "../tables/test.csv"')), tmp_path / "run")
    assert found["metrics"]["accuracy"] == found["accuracy"]
    assert [row["support"] for row in found["metrics"]["per_class"]] == [40, 20]
    assert found["metrics"]["baseline"]["accuracy"] == pytest.approx(2 / 3)
    assert found["test_set"] == "60 examples, public: held by the server, not by any client"
    export(tmp_path / "run", tmp_path / "out")
    shown = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert shown["metrics"] == found["metrics"]
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert "ward.csv" not in json.dumps(settings)
    assert settings["data"]["columns"]["sex"] == {"levels": ["f", "m"]}


def of_silos(folder: Path, data: str) -> Config:
    privacy = 'unit = "record"\nepsilon = 8.0\ndelta = 1e-3\nrounds = 1\nrecords = 31'
    path = write(folder, data, privacy=privacy)
    names = rows(clients=2).replace("\n000;", "\nNorth;").replace("\n001;", "\nst-south;")
    (folder / "tables" / "ward.csv").write_text(names)
    return parse(tables(path))


def test_silos_keep_their_names_where_these_are_stated(tmp_path: Path) -> None:
    run = Run.create(of_silos(tmp_path, 'clients = 2\nnames = ["North", "st-south"]'), tmp_path / "run")
    summary = run.train()
    assert set(summary["epsilon_by_silo"]) == {"North", "st-south"}
    assert summary["statement"]["text"].startswith("North, st-south may claim:")
    assert {path.name for path in (tmp_path / "run" / "silos").iterdir()} == {"North", "st-south"}
    assert Run.open(tmp_path / "run").train()["epsilon_by_silo"] == summary["epsilon_by_silo"]


def test_the_ledger_of_a_silo_does_not_hang_on_its_name(tmp_path: Path) -> None:
    """A silo that is called by its name, where it had a number before, has spent what it has spent."""
    Run.create(of_silos(tmp_path, "clients = 2"), tmp_path / "run").train()
    named = of_silos(tmp_path, 'clients = 2\nnames = ["North", "st-south"]')
    with pytest.raises(BudgetExceeded):
        Run.create(named, tmp_path / "other")
