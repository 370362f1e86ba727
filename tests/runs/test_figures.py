"""A figure says of which data it is, what was promised, how good nothing is, and how far runs are from their mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import incrowd
from incrowd.errors import ConfigError
from incrowd.runs.database import Record
from incrowd.runs.figures import RunCurve, _over_rounds, _sensible, plot_runs
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


@pytest.mark.slow
def test_a_line_shows_the_model_that_has_learned_nothing(tmp_path: Path) -> None:
    assert "<!-- always the most frequent class: 0.125 -->" in drawn(tmp_path, curve())
    numbers: dict[str, Any] = {"accuracy": None, "loss": 2.0, "metrics": {"mse": 4.0, "baseline": {"mse": 9.0}}}
    losses = [replace(record, accuracy=None) for record in RECORDS]
    assert curve(*losses, **numbers).baseline == 4.5
    assert "<!-- always the mean: 4.5 -->" in drawn(tmp_path, curve(*losses, **numbers))
    assert curve(**{**numbers, "loss": 1.0}).baseline is None  # another loss: its trivial value is not known
    assert "always" not in drawn(tmp_path, curve(metrics=None))


@pytest.mark.slow
def test_accuracy_where_there_is_one_otherwise_the_loss_and_no_lost_round(tmp_path: Path) -> None:
    assert "<!-- accuracy on the test set -->" in drawn(tmp_path, curve())
    losses = [replace(record, accuracy=None) for record in RECORDS]
    assert "<!-- loss on the test set -->" in drawn(tmp_path, curve(*losses, accuracy=None, metrics=None))
    assert [record.round for record in curve().records] == [0, 2]
    assert "<!-- ε spent, at most -->" in drawn(tmp_path, curve(RECORDS[1]))  # nothing measured


@pytest.mark.slow
def test_runs_that_differ_by_their_seeds_are_one_curve_and_others_are_told_apart(tmp_path: Path) -> None:
    two = drawn(tmp_path, curve(seed=1), curve(seed=2))
    assert "<!-- mean of 2 runs ± 1 standard deviation -->" in two
    assert "for one client, each run by itself -->" in two
    apart = drawn(tmp_path, curve(), curve(epsilon=8.0))
    assert "<!-- ε = 2 -->" in apart
    assert "<!-- ε = 8 -->" in apart
    assert "<!-- digits, 100 clients, δ = 10⁻⁵, for one client, each run by itself -->" in apart


def test_mean_and_spread_are_those_of_numpy_in_the_rounds_that_all_measured() -> None:
    each = [[0.1, 0.4], [0.3, 0.8], [0.2, 0.3]]
    runs = [curve(*(replace(RECORDS[0], round=2 * place, accuracy=v) for place, v in enumerate(one))) for one in each]
    points = _over_rounds([*runs[:2], curve(*runs[2].records, replace(RECORDS[0], round=8))], "accuracy")
    assert points.rounds == [1, 3]
    assert np.allclose(points.mean, [0.2, 0.5])
    assert points.spread is not None
    assert np.allclose(points.spread, np.std(each, axis=0, ddof=1))
    assert _over_rounds(runs[:1], "accuracy").spread is None


def test_the_same_seed_twice_no_run_and_figures_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it counts twice"):
        plot_runs(tmp_path / "runs.png", [curve(), curve()])
    with pytest.raises(ConfigError, match="at least one run"):
        plot_runs(tmp_path / "runs.png", [])
    losses = [replace(record, accuracy=None) for record in RECORDS]
    with pytest.raises(ConfigError, match="draw them in two figures"):
        plot_runs(tmp_path / "runs.png", [curve(), curve(*losses)])
    plot_runs(tmp_path / "runs.png", [curve(seed=None), curve(seed=None)])  # nobody can repeat these


@pytest.mark.parametrize(("values", "limits"), [((0.86, 0.93), (0.8, 1.01)), ((0.25, 0.6), (0.0, 0.61))])
def test_shares_begin_at_a_whole_tenth_or_at_0_where_that_is_near(
    values: tuple[float, float], limits: tuple[float, float]
) -> None:
    assert _sensible(*values) == pytest.approx(limits)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_figure_is_the_same_file_whenever_it_is_drawn(tmp_path: Path, ending: str) -> None:
    for name in ("one", "two"):
        plot_runs(tmp_path / f"{name}.{ending}", [curve()])
    one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 1000


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
