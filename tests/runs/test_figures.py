"""A figure says of which data it is, what was promised, how good nothing is, and how far runs are from their mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import incrowd
from incrowd.errors import ConfigError
from incrowd.runs.database import Record
from incrowd.runs.figures import RunCurve, plot_runs
from tests.command import command
from tests.runs.small import SEEDED

RECORDS = [
    Record(round=0, epsilon=1.0, accuracy=0.5, loss=1.0),
    Record(round=1, epsilon=1.5, lost=True),
    Record(round=2, epsilon=2.0, accuracy=0.7, loss=0.5),
]


def curve(*records: Record, seed: int | None = 1, epsilon: float = 2.0, **facts: Any) -> RunCurve:
    """A run of the digits; `facts` are what it came to."""
    settings = {
        "config": {
            "data": {"name": "digits", "seed": 0},
            "privacy": {"unit": "client", "epsilon": epsilon, "delta": 1e-5},
            "run": {"seed": seed},
        }
    }
    summary = {"data": "digits", "clients": 100, "epsilon": epsilon, "delta": 1e-5, "simulated": seed is not None}
    summary |= {"accuracy": 0.7, "loss": 0.5, "metrics": {"baseline": {"accuracy": 0.125}}}
    return RunCurve.of(settings, summary | facts, records or RECORDS)


def drawn(folder: Path, *curves: RunCurve) -> str:
    """The words of the figure: an SVG has them in comments, beside the letters as paths."""
    plot_runs(folder / "runs.svg", curves)
    return (folder / "runs.svg").read_text()


@pytest.mark.slow
def test_the_title_says_data_and_promise_and_a_simulation_is_marked(tmp_path: Path) -> None:
    assert "<!-- digits, 100 clients, ε = 2, δ = 10⁻⁵, for one client -->" in drawn(tmp_path, curve(seed=None))
    assert "SIMULATION" not in drawn(tmp_path, curve(seed=None))
    assert "<!-- SIMULATION: seeded noise -->" in drawn(tmp_path, curve())


def test_the_same_seed_twice_no_run_and_figures_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it counts twice"):
        plot_runs(tmp_path / "runs.png", [curve(), curve()])
    with pytest.raises(ConfigError, match="at least one run"):
        plot_runs(tmp_path / "runs.png", [])
    losses = [replace(record, accuracy=None) for record in RECORDS]
    with pytest.raises(ConfigError, match="draw them in two figures"):
        plot_runs(tmp_path / "runs.png", [curve(), curve(*losses)])
    plot_runs(tmp_path / "runs.png", [curve(seed=None), curve(seed=None)])  # nobody can repeat these


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_command_and_a_result_plot_runs_of_several_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["data.clients=20", "privacy.rounds=2", *SEEDED, "run.plot=false", "run.threads=1"]
    runs = [
        incrowd.Federation.from_settings(overrides=[*quick, f"run.seed={seed}"]).train(
            tmp_path / f"{seed}", progress=False
        )
        for seed in (1, 2)
    ]
    plot = command(monkeypatch, capsys, "plot", str(tmp_path / "1"), str(tmp_path / "2"))
    done = plot("--out", str(tmp_path / "a.pdf"))
    assert done.status == 0
    assert done.out == f"{tmp_path / 'a.pdf'} shows 2 runs\n"
    assert runs[0].plot(tmp_path / "b.pdf", runs[1]).read_bytes() == (tmp_path / "a.pdf").read_bytes()
