import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from incrowd.errors import ConfigError
from incrowd.runs.run import Run
from tests.runs.small import seeded, small
from tests.runs.test_run import stopped

MLFLOW = """
import json
from pathlib import Path
from typing import Any

def note(*words):
    with Path("mlflow.log").open("a") as file:
        file.write(json.dumps(words) + "\\n")

def start_run(run_name):
    note("start", run_name)

def log_dict(values, name):
    note("dict", sorted(values), name)

def log_metrics(values, step):
    note("metrics", sorted(values), step)

def end_run(status):
    note("end", status)
"""


def test_files_have_a_line_for_every_round(folder: Path) -> None:
    Run.create(small('run.trackers=["csv", "jsonl"]', "run.report_every=2"), folder).train()
    with (folder / "rounds.csv").open() as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [int(row["round"]) for row in table] == [line["round"] for line in lines] == [0, 1, 2, 3]
    assert [row["accuracy"] != "" for row in table] == [False, True, False, True]
    assert [float(row["epsilon"]) for row in table] == [line["epsilon"] for line in lines]
    assert "simulation" not in table[0]
    assert lines[0]["simulation"] is None


def test_files_of_a_run_that_goes_on_have_every_round_once(folder: Path) -> None:
    stopped(folder, 'run.trackers=["csv", "jsonl"]', after=2)
    Run.open(folder).train()
    rounds = [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert rounds == [0, 1, 2, 3]
    assert len((folder / "rounds.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ConfigError, match=f"run.trackers = '{name}': pip install {name}"):
        Run.create(seeded(f'run.trackers=["{name}"]'), folder / "run")
    assert not (folder / "run").exists()


def told_to_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch, *, simulated: bool) -> list[list[Any]]:
    """What a run tells MLflow that is stopped after three rounds of four, and goes on."""
    (folder / "mlflow.py").write_text(MLFLOW)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    stopped(folder / "run", 'run.trackers=["mlflow"]', after=3, simulated=simulated)
    Run.open(folder / "run").train()
    monkeypatch.delitem(sys.modules, "mlflow")
    return [json.loads(line) for line in (folder / "mlflow.log").read_text().splitlines()]


def test_mlflow_hears_of_a_run_in_earnest_when_it_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It notes when it is told, which would tell how long each round took."""
    told = told_to_mlflow(folder, monkeypatch, simulated=False)
    assert [words[0] for words in told] == ["start", "dict", *["metrics"] * 4, "dict", "end"]
    assert [words[2] for words in told if words[0] == "metrics"] == [0, 1, 2, 3]
    assert told[2][1] == ["accuracy", "clip_norm", "epsilon", "loss", "noise_std"]
