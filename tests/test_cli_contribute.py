"""`incrowd contribute`, as the owner of a device meets it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.command import Command, command
from tests.service import letters
from tests.service.listener import Listener, honest


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(honest(letters.server(epsilon=1.0))).listening() as listening:
        yield listening


@pytest.fixture
def contribute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, listener: Listener
) -> Command:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("mail.sqlite")) as app, app:
        app.execute("CREATE TABLE examples (opened, sender, words, about)")
        app.executemany("INSERT INTO examples VALUES (?, ?, ?, ?)", [tuple(row.values()) for row in letters.letters()])
        app.execute("CREATE VIEW odd AS SELECT opened, 'stranger' AS sender, 900 AS words, about FROM examples")
        app.execute("CREATE TABLE other (opened)")
    words = "contribute", "--server", listener.url, "--database", "mail.sqlite", "--pace", "0"
    return command(monkeypatch, capsys, *words)


def test_contributions_are_counted_and_accounted_for(contribute: Command) -> None:
    finished = contribute("--times", "2", "--json")
    assert finished.status == 0
    found = finished.object()
    assert (found["sent"], found["accepted"], found["rejected"], found["reasons"]) == (2, 2, 0, {"accepted": 2})
    assert found["epsilon_spent"] == pytest.approx(2.0, rel=1e-3)
    assert found["epsilon_today"] == pytest.approx(2.0, rel=1e-3)
    assert found["epsilon_allowed"] == 20.0
    assert Path("mail.sqlite.ledger").is_file()


def test_what_the_budget_does_not_allow_ends_with_3(contribute: Command, listener: Listener) -> None:
    finished = contribute("--times", "5", "--json")
    assert finished.status == 3
    assert finished.object()["sent"] == 2
    assert "daily limit is 2" in finished.err
    assert sum(request.path == "/v1/answer" for request in listener.heard) == 2


def test_the_total_is_fixed_when_the_ledger_is_begun(contribute: Command) -> None:
    assert contribute("--total", "1.5", "--ledger", "own.ledger", "--json").object()["epsilon_allowed"] == 1.5
    finished = contribute("--ledger", "own.ledger", "--json")
    assert (finished.status, finished.object()["sent"]) == (3, 0)
    assert "budget" in finished.err
    raised = contribute("--ledger", "own.ledger", "--total", "9")
    assert raised.status == 1
    assert "budget" in raised.err
    assert not Path("mail.sqlite.ledger").exists()


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (("--epsilon", "0.5"), 1, "allows 0.5"),
        (("--fields", "opened,sender,about"), 1, "the field words is not one"),
        (("--table", "other"), 1, "the field"),
        (("--table", "none"), 2, "table = 'none'"),
        (("--times", "0"), 2, "times = 0"),
        (("--daily", "-1"), 2, "daily_epsilon = -1"),
        (("--whole", "0"), 2, "whole_epsilon = 0"),
        (("--per", "person"), 2, "--per"),
        (("--database", "gone.sqlite"), 2, "no such file"),
        (("--server", "http://learn.example.org"), 2, "give https"),
        (("--server", "http://127.0.0.1:1"), 1, "connection refused: see that the service runs there"),
    ],
)
def test_what_cannot_be_done_is_said_and_costs_nothing(
    contribute: Command, listener: Listener, options: tuple[str, ...], status: int, why: str
) -> None:
    finished = contribute(*options)
    assert finished.status == status
    assert why in finished.err
    assert not any(request.path == "/v1/answer" for request in listener.heard)


def test_what_each_number_costs_is_limited_as_a_whole(contribute: Command, listener: Listener) -> None:
    listener.say = honest(letters.server(epsilon=1.0, privacy="feature"))
    refused = contribute("--per", "feature")
    assert refused.status == 1
    assert "all 44 numbers" in refused.err
    assert contribute("--per", "feature", "--whole", "45", "--json").object()["sent"] == 1


def test_an_unreachable_service_ends_with_1_and_says_what_was_done(contribute: Command, listener: Listener) -> None:
    listener.cut["/v1/answer"] = 0
    finished = contribute("--times", "3", "--json")
    assert finished.status == 1
    assert finished.object()["sent"] == 0
    assert finished.object()["epsilon_spent"] == pytest.approx(1.0, rel=1e-3)
    listener.cut.clear()
    later = contribute("--json").object()
    assert (later["sent"], later["accepted"]) == (1, 1)
    assert later["epsilon_spent"] == pytest.approx(1.0, rel=1e-3)


def test_a_check_is_for_the_owner_alone(contribute: Command, listener: Listener) -> None:
    found = contribute("--check", "--json")
    assert found.status == 0
    assert (found.object()["examples"], found.object()["usable"], found.object()["problems"]) == (20, 20, [])
    odd = contribute("--check", "--table", "odd")
    assert "sender: 20 of 20 is none of the levels" in odd.out
    assert "words: 20 of 20 lies beyond 0 to 500" in odd.out
    refused = contribute("--check", "--epsilon", "0.5")
    assert refused.status == 1
    assert "refused" in refused.out
    assert {request.path for request in listener.heard} == {"/v1/specification"}
    assert not Path("mail.sqlite.ledger").exists()
