"""`incrowd train`, `resume` and `evaluate`, as a user meets them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from incrowd.privacy.ledger.ledger import verify
from tests.command import Command

QUICK = ["features={name='none'}", "data.clients=12", "privacy.rounds=3", "local.batch_size=32"]


def quick(*more: str) -> list[str]:
    """The words for a run of a second."""
    return ["train", *(word for one in (*QUICK, *more) for word in ("--set", one))]


def test_the_demonstration_learns_and_says_what_it_promises(incrowd: Command, tmp_path: Path) -> None:
    finished = incrowd("train")
    assert finished.status == 0
    shown = dict(re.findall(r"^(accuracy|epsilon) +(\S+)$", finished.out, re.MULTILINE))
    assert float(shown["accuracy"]) > 0.9
    assert float(shown["epsilon"]) <= 8
    assert "(8, 0.001)-differentially private" in finished.out
    assert "public: held by the server" in finished.out
    assert "SIMULATION" not in finished.out
    assert "round 20/20" in finished.err
    assert "data:image/png;base64" in (tmp_path / "out/run-1/report.html").read_text()


def test_json_is_one_object_and_progress_goes_elsewhere(incrowd: Command, tmp_path: Path) -> None:
    finished = incrowd(*quick("run.randomness=seeded", "run.seed=1"), "--out", "here", "--json")
    assert finished.status == 0
    found = finished.object()
    assert {"accuracy", "epsilon", "delta", "budget", "client_updates_per_second"} <= set(found)
    assert found["rounds"] == 3
    assert found["communications"] == 36
    assert found["run"] == str(tmp_path / "here")
    assert any("SIMULATION" in caveat for caveat in found["statement"]["caveats"])
    assert "round 3/3" in finished.err
    again = incrowd("resume", "here", "--json")
    assert again.status == 0
    assert again.object() == found


def test_a_config_file_and_overrides(incrowd: Command, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        "[data]\nclients = 12\n[privacy]\nepsilon = 2.0\ndelta = 1e-3\nrounds = 2\n[run]\n"
    )
    found = incrowd("train", "run.toml", "--set", "privacy.epsilon=1", "--json").object()
    assert found["budget"] == {"epsilon": 1.0, "delta": 1e-3}
    assert found["rounds"] == 2
    assert found["epsilon"] <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_the_keyboard_stops_a_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "incrowd", *quick("privacy.rounds=5000"), "--out", "here"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 2/"):
                break
        process.send_signal(signal.SIGINT)
        assert "go on with: incrowd resume" in process.stderr.read()
        assert process.wait() == 1
    assert verify(tmp_path / "here/ledger.sqlite")["intact"]


@pytest.mark.usefixtures("one_thread")
def test_an_evaluation_says_what_was_measured_and_what_it_cost(incrowd: Command) -> None:
    assert incrowd(*quick("privacy.room=200", "run.randomness=seeded", "run.seed=1"), "--out", "run").status == 0
    said = incrowd("evaluate", "run", "--epsilon", "50", "--loss-bound", "4", "--by-class")
    assert said.status == 0
    for words in ("accuracy  ", "loss  ", "give or take 0.0", "recall of 9", "this cost", "all together"):
        assert words in said.out
    assert "What it is: the mean over all 12 clients, of whom each counts the same" in said.out
    assert "SIMULATION" in said.out
    found = incrowd("evaluate", "run", "--epsilon", "1", "--json")
    assert found.object() == json.loads(Path("run/evaluation.json").read_text())["evaluations"][1]
