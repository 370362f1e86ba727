"""`incrowd init`: a template from the header alone, which runs once it is filled in."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.command import Command

pytestmark = pytest.mark.usefixtures("one_thread")

HEADER = "patient;age;sex;admitted;note;died\n"


def table(folder: Path) -> Path:
    rows = [
        f"{place % 10:03};{20 + place},5;{'fm'[place % 2]};{1 + place % 28:02}.01.2020;x;{'no' if place % 3 else 'yes'}"
        for place in range(30)
    ]
    (folder / "hospital").mkdir(parents=True)
    path = folder / "hospital" / "visits.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


FILLED = {
    'client = "?"': 'client = "patient"',
    'label = "?"': 'label = "died"',
    'classes = ["?"]': 'classes = ["no", "yes"]',
    "# decimal": "decimal",
    "clients = 0 ": "clients = 10 ",
    'patient = "?"\n': "",
    'died = "?"': "",
    'age = "?"': "age = {range = [0, 120], missing = 40}",
    'sex = "?"': 'sex = {levels = ["f", "m"], other = true}',
    'admitted = "?"': 'admitted = {dates = ["2015-01-01", "2025-12-31"], format = "%d.%m.%Y"}',
    'note = "?"': 'note = "ignore"',
    "epsilon = 0.0": "epsilon = 8.0",
    "delta = 0.0": "delta = 1e-3",
}


def test_a_template_that_is_filled_in_runs(tmp_path: Path, incrowd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path)
    settings = tmp_path / "settings" / "visits.toml"
    assert incrowd("init", str(path), "--out", str(settings)).status == 0
    text = settings.read_text().replace("room = 0.0", "rounds = 2\nroom = 0.0")
    assert tomllib.loads(text)["recipe"] == "tables"
    assert 'file = "../hospital/visits.csv"' in text
    for blank, filled in FILLED.items():
        assert blank in text
        refused = incrowd("train", str(settings), "--out", str(tmp_path / "run"))
        assert refused.status == 2  # until everything is filled in
        assert re.match(r"incrowd: [a-z]+\.|incrowd: .*visits.csv", refused.err), refused.err
        text = text.replace(blank, filled, 1)
        settings.write_text(text)
    settings.write_text(text + "[run]\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done = incrowd("train", str(settings), "--out", str(tmp_path / "run"), "--yes", "--json")
    assert (done.status, done.object()["clients"], done.object()["rounds"]) == (0, 10, 2)
    assert done.object()["metrics"] is None  # there is no test set


def test_a_template_is_printed_or_written_once(tmp_path: Path, incrowd: Command) -> None:
    path = table(tmp_path)
    printed = incrowd("init", str(path))
    assert 'client = "?"' in printed.out
    found = incrowd("init", str(path), "--client", "patient", "--label", "died", "--json").object()
    assert found["columns"] == HEADER.strip().split(";")
    assert (found["delimiter"], found["encoding"], found["out"]) == (";", "utf-8", None)
    assert 'client = "patient"' in found["template"]
    out = tmp_path / "own.toml"
    said = incrowd("init", str(path), "--out", str(out)).out
    assert said == f"{out}: fill in what is marked with a ?, then: incrowd train {out}\n"
