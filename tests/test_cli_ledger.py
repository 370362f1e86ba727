"""`incrowd ledger` on the command line: begin, list, move, back up, put back, give back, start afresh."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from incrowd.privacy.ledger.ledger import Ledger
from tests.command import Command, command
from tests.privacy.ledgers import SMALL

NAMED = ("--name", "survey", "--epsilon", "1", "--delta", "1e-5")


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys, "ledger")


@pytest.fixture
def begun(incrowd: Command, tmp_path: Path) -> Path:
    assert incrowd("new", "survey.sqlite", *NAMED).status == 0
    with Ledger.open(tmp_path / "survey.sqlite") as ledger:
        ledger.charge(SMALL)
        ledger.reserve([(SMALL, 2)], label="given up")
    return tmp_path / "survey.sqlite"


@pytest.mark.usefixtures("begun")
def test_a_ledger_is_listed_shown_and_verified(incrowd: Command) -> None:
    assert "survey" in incrowd("list").out
    (row,) = incrowd("list", "--json").object()["ledgers"]
    assert (row["name"], row["budget"], row["entries"], row["intact"]) == ("survey", 1.0, 3, True)
    *facts, _, first, last = incrowd("show", "survey.sqlite").out.splitlines()
    assert any(line.startswith("budget       epsilon ") for line in facts)
    assert any("given up 0 of 2 charged" in line for line in facts)
    assert " charge " in first
    assert '"noise_multiplier":' in last
    found = incrowd("show", "survey.sqlite", "--json").object()
    assert (found["events"], found["intact"], found["delta"], len(found["entries"])) == (1, True, 1e-5, 3)


def test_an_edit_and_another_head_are_found(incrowd: Command, begun: Path) -> None:
    head = incrowd("verify", "survey.sqlite", "--json").object()["head"]
    assert "intact" in incrowd("verify", "survey.sqlite", "--head", head).out
    assert incrowd("verify", "survey.sqlite", "--head", "0" * 64).status == 1
    with closing(sqlite3.connect(begun, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM entries WHERE position = 2")
    for question in ("verify", "show"):
        finished = incrowd(question, "survey.sqlite", "--json")
        assert finished.status == 1
        assert finished.object()["intact"] is False


@pytest.mark.usefixtures("begun")
def test_what_a_run_had_reserved_is_given_back(incrowd: Command) -> None:
    assert incrowd("release", "survey.sqlite", "given up", "--json").object()["released"] is True
    refused = incrowd("release", "survey.sqlite", "nobody")
    assert refused.status == 2
    assert "'given up'" in refused.err


def test_a_ledger_is_moved_kept_lost_and_put_back(incrowd: Command, begun: Path) -> None:
    moved = incrowd("move", "survey.sqlite", "new.sqlite", "--witness", "other.witness", "--json").object()
    assert (Path(moved["ledger"]).name, Path(moved["witness"]).name) == ("new.sqlite", "other.witness")
    assert not begun.exists()
    assert incrowd("backup", "new.sqlite", "kept.sqlite").status == 0
    assert incrowd("show", "kept.sqlite").status == 1
    Path("new.sqlite").unlink()
    assert incrowd("verify", "new.sqlite").status == 1
    assert incrowd("restore", "kept.sqlite", "new.sqlite", "--json").object()["entries"] == 3
    assert incrowd("verify", "new.sqlite").status == 0
    assert incrowd("move", "nowhere.sqlite", "elsewhere.sqlite").status == 2


@pytest.mark.usefixtures("begun")
def test_a_fresh_start_needs_the_name(incrowd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("fresh", "survey", "--epsilon", "2", "--delta", "1e-5")
    typed = ["no", "survey"]
    monkeypatch.setattr("typer.prompt", lambda *_, **__: typed.pop(0))
    assert incrowd(*words).status == 2
    done = incrowd(*words, "--relation", "replace-one")
    assert done.status == 0
    assert "would leave all that was spent on survey out of account" in done.err
    assert incrowd("fresh", "nobody", "--epsilon", "2", "--delta", "1e-5").status == 2
    (row,) = [row for row in incrowd("list", "--json").object()["ledgers"] if not row["retired"]]
    shown = incrowd("show", row["ledger"], "--json").object()
    assert (shown["relation"], shown["forgets"][0]["entries"]) == ("REPLACE_ONE", 3)
