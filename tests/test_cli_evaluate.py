"""`incrowd evaluate`: figures on the clients' own examples, in plain words, from the folder of a run."""

import json
from pathlib import Path

import pytest

from tests.command import Command, command

pytestmark = pytest.mark.usefixtures("one_thread")

TRAIN = (
    "train", "--set", "data.clients=12", "--set", "privacy.rounds=2", "--set", "features={name='none'}",
    "--set", "run.threads=1", "--set", "run.randomness=seeded", "--set", "run.seed=1",
    "--set", "privacy.epsilon=8", "--set", "privacy.delta=1e-3",
)  # fmt: skip


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys)


def test_it_says_what_was_measured_and_what_it_cost(incrowd: Command) -> None:
    assert incrowd(*TRAIN, "--out", "run", "--set", "privacy.room=200").status == 0
    said = incrowd("evaluate", "run", "--epsilon", "50", "--loss-bound", "4", "--by-class")
    assert said.status == 0
    for words in ("accuracy  ", "loss  ", "give or take 0.0", "recall of 9", "this cost", "all together"):
        assert words in said.out
    assert "What it is: the mean over all 12 clients, of whom each counts the same" in said.out
    assert "SIMULATION" in said.out
    found = incrowd("evaluate", "run", "--epsilon", "1", "--json")
    assert found.object() == json.loads(Path("run/evaluation.json").read_text())["evaluations"][1]


def test_a_ledger_without_room_is_exit_status_3_and_the_remedy(incrowd: Command) -> None:
    assert incrowd(*TRAIN, "--out", "run").status == 0
    said = incrowd("evaluate", "run", "--epsilon", "1")
    assert (said.status, said.out) == (3, "")
    assert "privacy.room" in said.err
    assert not Path("run/evaluation.json").exists()


def test_it_is_never_free(incrowd: Command) -> None:
    assert incrowd(*TRAIN, "--out", "run").status == 0
    assert incrowd("evaluate", "run").status == 2
    assert incrowd("evaluate", "run", "--epsilon", "0").status == 2
