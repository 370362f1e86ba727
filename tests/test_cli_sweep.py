"""`incrowd sweep`, as its users call it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Command, command
from tests.runs.waiting import until

QUICK = ("--set", "data.clients=12", "--set", "features={name='none'}", "--set", "privacy.rounds=2")
GRID = ("--grid", "server.learning_rate=4,16")


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys, "sweep")


@pytest.mark.slow
def test_a_sweep_prints_one_object_and_the_same_command_repeats_it(incrowd: Command) -> None:
    finished = incrowd(*GRID, *QUICK, "--json")
    assert finished.status == 0
    found = finished.object()
    assert {"runs", "best", "epsilon_of_search"} <= set(found)
    assert len(found["runs"]) == 2
    assert found["epsilon_of_search"] > 8
    assert "2 settings to compare" in finished.err
    assert incrowd(*GRID, *QUICK, "--json").object() == found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_stopped_or_killed_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    grid = ("--grid", "server.learning_rate=1,2,4,8", "--set", "privacy.rounds=60", "--set", "data.clients=30")
    words = [sys.executable, "-c", START, "sweep", *grid, "--json", "--out", str(tmp_path / "s")]
    summary = tmp_path / "s/runs/0000/summary.json"
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(summary.exists, seconds=400)
    first.send_signal(how)
    out, err = first.communicate(timeout=400)
    assert (first.returncode, out) == (1 if how is signal.SIGINT else -how, "")
    assert "Traceback" not in err
    done = summary.stat().st_mtime_ns
    last = subprocess.run(words, capture_output=True, text=True, check=False)
    while "another process trains" in last.stderr:  # what a killed sweep had begun ends its round first
        last = subprocess.run(words, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert len(json.loads(last.stdout)["runs"]) == 4
    assert summary.stat().st_mtime_ns == done


START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have told them to ignore it
from incrowd.cli import main
main()
"""
