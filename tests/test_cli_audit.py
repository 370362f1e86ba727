"""`incrowd audit`: a verdict, in words or as one object, and nothing of the run's is touched."""

import json
from pathlib import Path

import pytest

from tests.audit.broken import noise_is
from tests.command import Command

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--set", "data.clients=20", "--set", "privacy.rounds=3", "--set", "features={name='none'}")
FEW = ("--repeats", "6")


@pytest.mark.slow
def test_it_says_what_was_promised_and_what_was_found_out(incrowd: Command) -> None:
    said = incrowd("audit", *SMALL, *FEW)
    assert said.status == 0
    for words in ("epsilon = 8 at delta = 0.001", "at least", "the promise holds", "simulations"):
        assert words in said.out
    (row,) = [line for line in said.out.splitlines() if "divisor of a mean" in line]
    cells = row.strip("│ ").split("│")
    assert cells[0].startswith("divisor of a mean  ")  # texts begin below each other
    assert [cell.strip() for cell in cells[1:4]] == ["20", "20, whoever answers", "yes"]
    found = incrowd("audit", *SMALL, *FEW, "--out", "found", "--json").object()
    assert found == json.loads(Path("found/audit.json").read_text())
    assert 0 <= found["epsilon_lower_bound"] <= found["epsilon_claimed"] == pytest.approx(8)
    assert (found["holds"], found["confidence"]) == (True, 0.95)
    again = incrowd("audit", *SMALL, *FEW, "--out", "found")
    assert (again.status, "name another folder" in again.err) == (2, True)


@pytest.mark.slow
def test_a_violation_is_exit_status_1_and_said(incrowd: Command) -> None:
    with noise_is(0.5)():
        said = incrowd("audit", *SMALL, *FEW, "--json")
    assert said.status == 1
    assert said.object()["holds"] is False
    assert "the promise does not hold: " in said.err
    assert "noise: 0." in said.err


@pytest.mark.slow
def test_a_run_keeps_its_ledger_and_every_file_as_it_was(incrowd: Command) -> None:
    """And it may be audited where its ledger is not: an audit is no part of what is paid for."""
    options = ("--set", "run.randomness=seeded", "--set", "run.seed=1")
    assert incrowd("train", *SMALL, *options, "--out", "run").status == 0
    ledgers = [Path("run/ledger.sqlite"), Path("run/ledger.sqlite.witness"), Path("run/ledger.json")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in ledgers]
    there = sorted(path.name for path in Path("run").iterdir())
    said = incrowd("audit", "run", *FEW, "--json")
    assert said.status == 0
    assert said.object()["settings"]["rounds"] == 3
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in ledgers] == before
    assert sorted(path.name for path in Path("run").iterdir()) == there
    for path in ledgers:
        path.unlink()
    assert incrowd("audit", "run", *FEW, "--json").status == 0
    refused = incrowd("audit", "run", "--set", "privacy.epsilon=1")
    assert (refused.status, "as it was made" in refused.err) == (2, True)
