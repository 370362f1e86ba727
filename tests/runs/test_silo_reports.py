"""Silos that report of the model: in the result, within every budget, and the same after a crash."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd.errors import BudgetExceeded
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDED = incrowd.RunOptions(randomness="seeded", seed=3)


def train(folder: Path, *, run: incrowd.RunOptions | None = SEEDED, **privacy: Any) -> dict[str, Any]:
    made = np.random.default_rng(0)
    x = made.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    parts = {"north": (x[:200], y[:200]), "south": (x[200:], 1 - y[200:])}  # south learns the opposite
    torch.manual_seed(0)
    federation = incrowd.Federation(
        nn.Linear(3, 2),
        incrowd.Clients.from_partitions(parts, classes=2, public=True).named(),
        privacy=incrowd.Private(
            unit="record", **{"epsilon": 8.0, "delta": 1e-5, "rounds": 2, "report_std": 3.0} | privacy
        ),
        run=run,
    )
    return dict(federation.train(folder, progress=False).summary)


@pytest.mark.slow
def test_each_silo_says_of_its_own_records_what_the_mean_would_hide(folder: Path) -> None:
    summary = train(folder)
    north, south = (summary["report_by_silo"][name] for name in ("north", "south"))
    assert north["accuracy"] + south["accuracy"] == pytest.approx(1.0, abs=0.3)
    assert north["table"] != south["table"]
    assert all(epsilon <= 8.0 for epsilon in summary["epsilon_by_silo"].values())
    assert json.loads((folder / "silos/north/report.json").read_text()) == north["table"]
    assert "report_by_silo" not in train(folder / "without", report_std=None)


@pytest.mark.slow
def test_a_run_that_is_over_says_the_same_and_charges_nothing(folder: Path) -> None:
    first = train(folder, run=incrowd.RunOptions())
    again = train(folder, run=incrowd.RunOptions())
    for name in ("report_by_silo", "epsilon_by_silo"):
        assert again[name] == first[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        Place("algorithms/silos.py", "report", "call", 2),
        Place("privacy/records.py", "report", "return"),
        Place("runs/round_loop.py", "report", "return", 2),
        Place("runs/folder.py", "write_results", "call"),
    ],
    ids=lambda place: f"{place.function}-{place.happening}",
)
def test_killed_around_a_report_a_simulation_reports_the_same(folder: Path, place: Place) -> None:
    whole = train(folder / "whole")
    assert status_of(start(lambda: killed_in(place, lambda: train(folder / "cut")))) != 0
    again = train(folder / "cut")
    for name in ("report_by_silo", "epsilon_by_silo", "statement"):
        assert again[name] == whole[name]


@pytest.mark.slow
def test_in_earnest_a_report_that_was_charged_and_lost_stays_lost(folder: Path) -> None:
    options = incrowd.RunOptions()
    place = Place("privacy/records.py", "report", "return")
    assert status_of(start(lambda: killed_in(place, lambda: train(folder, run=options)))) != 0
    summary = train(folder, run=options)
    assert summary["report_by_silo"]["north"] is None
    assert summary["report_by_silo"]["south"] is not None
    assert all(epsilon <= 8.0 for epsilon in summary["epsilon_by_silo"].values())


def test_a_report_that_no_budget_could_pay_for_is_refused_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(BudgetExceeded, match=r"costs epsilon = .* the budget is 8"):
        train(folder / "run", report_std=0.01)
    assert not (folder / "run").exists()
