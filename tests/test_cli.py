import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from incrowd import __version__
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.sampling import Everyone
from tests.command import Command, command

PLAN = ["plan", "--clients", "1000", "--epsilon", "8", "--delta", "1e-5", "--rounds", "5", "--cohort", "220"]


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    budget = Budget(epsilon=5.0, delta=1e-5)
    with Ledger.open(path, budget=budget, relation=Relation.ADD_OR_REMOVE_ONE, data_identity="d") as ledger:
        for _ in range(3):
            ledger.charge(Everyone(clients=9).event(5.0), note={"round": 0})
    return path


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "incrowd", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"incrowd {__version__}\n"


def test_version_and_help(incrowd: Command) -> None:
    assert incrowd("--version").out == f"incrowd {__version__}\n"
    groups = [[name] for name in ("ddml", "flower", "ledger", "party", "privacy", "reproduce")]
    for words in ([], ["plan"], *groups, ["ledger", "show"], ["ledger", "verify"]):
        finished = incrowd(*words, "--help")
        assert finished.status == 0
        assert "Usage:" in finished.out
        assert "Example: incrowd " in " ".join(finished.out.split())


@pytest.mark.slow
def test_plan_prints_json_and_nothing_else(incrowd: Command) -> None:
    finished = incrowd(*PLAN, "--json")
    assert finished.status == 0
    plans = finished.object()["plans"]
    assert isinstance(plans, list)
    (plan,) = plans
    assert {"rounds", "cohort", "sampling_prob", "noise_multiplier", "epsilon", "schedule"} <= set(plan)
    assert plan["rounds"] == 5
    assert plan["sampling_prob"] == 0.22
    assert 7.99 < plan["epsilon"] <= 8


@pytest.mark.slow
def test_plan_answers_what_if(incrowd: Command, tmp_path: Path) -> None:
    picture = tmp_path / "plans.svg"
    words = (
        "--clients",
        "100,1000",
        "--epsilon",
        "1,8",
        "--delta",
        "1e-5",
        "--rounds",
        "5,9",
        "--sampling",
        "everyone",
    )
    finished = incrowd("plan", *words, "--weights", "400", "--plot", str(picture), "--json")
    plans = finished.object()["plans"]
    assert [(plan["clients"], plan["budget_epsilon"], plan["rounds"]) for plan in plans] == [
        (clients, epsilon, rounds) for clients in (100, 1000) for epsilon in (1, 8) for rounds in (5, 9)
    ]
    assert all(plan["epsilon"] <= plan["budget_epsilon"] for plan in plans)
    assert plans[0]["noise_to_signal"] == pytest.approx(plans[0]["noise_multiplier"] * 20 / 100)
    text = picture.read_text()
    assert all(words in text for words in ("epsilon 1, 100 clients", "epsilon 8, 1000 clients", "400 weights"))
    table = incrowd("plan", *words).out
    assert re.search(r"budget epsilon", table)
    assert len(re.findall(r"│\s+1000 │\s+8 │", table)) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["plan", "--clients", "10", "--epsilon", "8", "--delta", "1", "--rounds", "1", "--cohort", "1"],
            "delta = 1.0",
        ),
        (["plan", "--clients", "10", "--epsilon", "-8", "--delta", "1e-5"], "epsilon = -8.0"),
        (["plan", "--clients", "10", "--epsilon", "8", "--delta", "1e-5", "--cohort", "11"], "cohort = 11.0"),
        (["plan", "--clients", "10", "--epsilon", "8", "--delta", "1e-5", "--cohort", "many"], "cohort = 'many'"),
        (["plan", "--clients", "10", "--epsilon", "8", "--delta", "1e-5", "--rounds", "1.5"], "rounds = '1.5'"),
        (["plan", "--clients", "10", "--delta", "1e-5", "--rounds", "5"], "epsilon = None: state it"),
        (
            [*PLAN, "--noise", "2"],
            "epsilon = 8.0: noise, rounds and cohort are given",
        ),
        (["plan", "--clients", "ten", "--epsilon", "8", "--delta", "1e-5"], "clients = 'ten'"),
        (["plan", "--clients", ",", "--epsilon", "8", "--delta", "1e-5"], "clients = ','"),
        (["plan", "--clients", "10", "--epsilon", "8", "--delta", "1e-5", "--cohort", "120%"], "cohort = 1.2"),
        ([*PLAN, "--plot", "/nowhere/at/all.png"], "plot = "),
        (["ledger", "show", "/nowhere/ledger.sqlite"], "/nowhere/ledger.sqlite"),
        (["launch"], "launch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_use_names_the_field_and_exits_with_2(incrowd: Command, words: list[str], message: str) -> None:
    finished = incrowd(*words)
    assert finished.status == 2
    assert message in finished.err
    assert finished.out == ""
    assert "Traceback" not in finished.err


def test_a_budget_that_allows_nothing_exits_with_3(incrowd: Command) -> None:
    finished = incrowd(
        "plan", "--clients", "10", "--epsilon", "0.1", "--delta", "1e-6", "--noise", "0.1", "--cohort", "10"
    )
    assert finished.status == 3
    assert "incrowd: " in finished.err


def test_ledger_show_lists_what_was_charged(incrowd: Command, ledger_file: Path) -> None:
    finished = incrowd("ledger", "show", str(ledger_file), "--json")
    assert finished.status == 0
    found = finished.object()
    assert found["events"] == 3
    assert found["intact"] is True
    assert found["delta"] == 1e-5
    assert len(found["entries"]) == 4  # the terms and three charges
    *facts, first, last = incrowd("ledger", "show", str(ledger_file)).out.splitlines()
    assert any(line.startswith("budget       epsilon ") for line in facts)
    assert " charge " in first
    assert '"noise_multiplier":5.0' in last


def test_ledger_verify_finds_an_edit(incrowd: Command, ledger_file: Path) -> None:
    assert incrowd("ledger", "verify", str(ledger_file), "--json").object()["intact"] is True
    assert "intact" in incrowd("ledger", "verify", str(ledger_file)).out
    with closing(sqlite3.connect(ledger_file, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM entries WHERE position = 3")
    for question in ("verify", "show"):
        finished = incrowd("ledger", question, str(ledger_file), "--json")
        assert finished.status == 1
        assert finished.object()["intact"] is False


def test_ledger_verify_compares_with_a_head_kept_elsewhere(incrowd: Command, ledger_file: Path) -> None:
    head = str(incrowd("ledger", "verify", str(ledger_file), "--json").object()["head"])
    assert incrowd("ledger", "verify", str(ledger_file), "--head", head).status == 0
    assert incrowd("ledger", "verify", str(ledger_file), "--head", "0" * 64).status == 1
