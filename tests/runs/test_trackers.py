import csv
import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from incrowd.errors import ConfigError
from incrowd.runs.folder import Record
from incrowd.runs.run import Run
from incrowd.runs.trackers import Bar, Lines
from tests.runs.small import seeded
from tests.runs.test_run import stopped

NOTED = """
import json
from pathlib import Path
from typing import Any

def note(*words):
    with Path("noted.log").open("a") as file:
        file.write(json.dumps(words) + "\\n")
"""
MLFLOW = f"""{NOTED}
def start_run(run_name):
    note("start", run_name)

def log_dict(values, name):
    note("facts", sorted(values), name)

def log_metrics(values, step):
    note("metrics", sorted(values), step)

def end_run(status):
    note("end", status)
"""
WANDB = f"""{NOTED}
class summary:
    @staticmethod
    def update(values):
        note("facts", sorted(values), "summary")

class Run:
    summary = summary

    def log(self, values, step):
        note("metrics", sorted(values), step)

    def finish(self, exit_code):
        note("end", exit_code)

def init(name, config, save_code):
    note("start", name)
    note("facts", sorted(config), "settings")
    return Run()
"""


def test_files_have_a_line_for_every_round_once_though_the_run_was_stopped(folder: Path) -> None:
    stopped(folder, 'run.trackers=["csv", "jsonl"]', "run.report_every=2", after=2, simulated=False)
    Run.open(folder).train()
    with (folder / "rounds.csv").open() as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [int(row["round"]) for row in table] == [line["round"] for line in lines] == [0, 1, 2, 3]
    assert [row["accuracy"] != "" for row in table] == [False, True, False, True]
    assert [float(row["epsilon"]) for row in table] == [line["epsilon"] for line in lines]
    assert "simulation" not in table[0]
    assert lines[0]["simulation"] is None


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ConfigError, match=f"run.trackers = '{name}': pip install .incrowd.{name}."):
        Run.create(seeded(f'run.trackers=["{name}"]'), folder / "run")
    assert not (folder / "run").exists()


@pytest.mark.parametrize(("name", "module"), [("mlflow", MLFLOW), ("wandb", WANDB)])
def test_a_tracker_with_a_clock_hears_of_a_run_in_earnest_when_it_is_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    """It notes when it is told, which would tell how long each round took."""
    (folder / f"{name}.py").write_text(module)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    stopped(folder / "run", f'run.trackers=["{name}"]', after=3, simulated=False)
    Run.open(folder / "run").train()
    monkeypatch.delitem(sys.modules, name)
    told: list[list[Any]] = [json.loads(line) for line in (folder / "noted.log").read_text().splitlines()]
    assert [words[0] for words in told] == ["start", "facts", *["metrics"] * 4, "facts", "end"]
    assert [words[2] for words in told if words[0] == "metrics"] == [0, 1, 2, 3]
    assert told[2][1] == ["accuracy", "clip_norm", "epsilon", "loss", "noise_std"]


SETTINGS = {"rounds": 6, "clients": 12, "noise_multiplier": 2.0, "config": {"run": {"report_every": 2, "seed": 1}}}


def record(number: int, *, accuracy: float | None = None, loss: float | None = None) -> Record:
    return Record(round=number, epsilon=0.5 * number, seconds=2.0, clients_per_second=6.0, accuracy=accuracy, loss=loss)


def test_a_terminal_gets_a_bar_that_remembers_the_last_accuracy() -> None:
    stream = StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=120))
    bar.start(SETTINGS, [])
    bar.round(record(0, accuracy=0.75, loss=1.0))
    bar.round(record(1))
    bar.end({})
    last = stream.getvalue().splitlines()[-1]
    for shown in ("2/6", "epsilon 0.500", "accuracy 0.7500", "6 clients/s", "remaining"):
        assert shown in stream.getvalue()
        assert shown in last or "\x1b" in last


def test_a_run_in_earnest_says_nothing_of_its_speed() -> None:
    settings = {**SETTINGS, "config": {"run": {"report_every": 1, "seed": None}}}
    timeless = replace(record(5, accuracy=0.75, loss=1.0), seconds=None, clients_per_second=None)
    plain, terminal = StringIO(), StringIO()
    for tracker in (Lines(plain), Bar(Console(file=terminal, force_terminal=True, width=120))):
        tracker.start(settings, [])
        tracker.round(timeless)
        tracker.end({})
    assert plain.getvalue().splitlines()[1:] == ["round 6/6  epsilon 2.500  accuracy 0.7500"]
    assert "6/6" in terminal.getvalue()
    assert "remaining" not in terminal.getvalue()
    assert "clients/s" not in terminal.getvalue()
