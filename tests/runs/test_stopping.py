"""A run ends early by what is public or paid for; then it costs what was charged, and a crash changes nothing of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import incrowd
from incrowd.errors import ConfigError
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.config import Stop
from incrowd.runs.folder import Record, database_in
from incrowd.runs.round_loop import decision
from incrowd.runs.run import Run
from incrowd.runs.work import check_watched
from incrowd.types import Facts
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in
from tests.runs.small import seeded, small

pytestmark = pytest.mark.usefixtures("one_thread")

EARLY = ("privacy.rounds=6", "stop.watch=accuracy", "stop.target=0.01")
"""So easy a target that the first round reaches it."""


def measured(*figures: float | None) -> list[Record]:
    return [Record(round=place, epsilon=1.0, loss=figure, accuracy=figure) for place, figure in enumerate(figures)]


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=12), st.integers(1, 4), st.floats(0, 10))
def test_it_is_what_a_slow_reading_of_the_rule_says(figures: list[float | None], patience: int, least: float) -> None:
    def over(known: list[float]) -> bool:
        """Every one of the last `patience` figures fails to better the best of the figures before it."""
        best: list[float] = []
        fails: list[bool] = []
        for figure in known:
            better = not best or best[-1] - figure > least
            fails.append(not better)
            best.append(figure if better else best[-1])
        return any(all(fails[end - patience : end]) for end in range(patience, len(fails) + 1))

    known = [figure for figure in figures if figure is not None]
    assert (decision(Stop(patience=patience, least=least), measured(*figures)) is not None) == over(known)


def ended(folder: Path) -> dict[str, Any]:
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        spent, promised = ledger.spent().epsilon, ledger.promised().epsilon
        return {"charges": ledger.charges()[0], "spent": spent, "promised": promised}


def test_a_run_that_stops_charges_no_further_round_and_gives_the_rest_back(folder: Path) -> None:
    summary = Run.create(small(*EARLY), folder).train()
    assert summary["stopped_early"].startswith("accuracy on the test set is")
    assert summary["rounds"] == 1
    assert summary["communications"] == 12
    found = ended(folder)
    assert found["charges"] == 1
    assert found["promised"] == found["spent"] == summary["epsilon"] < 8.0
    assert "6 rounds; it ended after 1." in " ".join((folder / "statement.txt").read_text().split())
    assert json.loads((folder / "summary.json").read_text())["stopped_early"] == summary["stopped_early"]


def test_one_that_is_over_says_its_result_again_and_charges_nothing(folder: Path) -> None:
    first = json.loads(json.dumps(Run.create(small(*EARLY), folder).train()))
    before = ended(folder)
    told: list[Any] = []

    class Watcher:
        def start(self, settings: Facts, past: Sequence[Record]) -> None:
            told.append(len(past))

        def round(self, record: Record) -> None:
            told.append(record)

        def end(self, summary: Facts | None) -> None:
            told.append(summary)

    again = Run.open(folder).train([Watcher()])
    assert again == first
    assert ended(folder) == before
    assert told == [1, first]


def test_one_that_does_not_stop_says_so_and_ends_as_one_without_the_section(folder: Path) -> None:
    plain = Run.create(seeded(), folder / "plain").train()
    patient = Run.create(seeded("stop.patience=50"), folder / "patient").train()
    assert plain["stopped_early"] is patient["stopped_early"] is None
    assert (folder / "plain/model.safetensors").read_bytes() == (folder / "patient/model.safetensors").read_bytes()


PLACES = [
    Place("runs/folder.py", "add", "return"),
    Place("runs/round_loop.py", "save", "return", 2),
    Place("runs/run.py", "_finished", "call"),
    Place("runs/folder.py", "write_results", "return"),
    Place("privacy/ledger/ledger.py", "release_reservation", "call"),
    Place("privacy/ledger/ledger.py", "release_reservation", "return"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.function}-{place.happening}")
def test_killed_anywhere_it_stops_where_it_would_have_stopped(folder: Path, place: Place) -> None:
    options = ("privacy.rounds=6", "server.learning_rate=1e-9", "stop.patience=2", "stop.least=1e-3")
    whole = Run.create(seeded(*options), folder / "whole").train()
    assert whole["rounds"] == 3
    Run.create(seeded(*options), folder / "cut")
    assert status_of(start(lambda: killed_in(place, lambda: Run.open(folder / "cut").train()))) != 0
    again = Run.open(folder / "cut").train()
    assert {name: again[name] for name in ("rounds", "stopped_early", "epsilon")} == {
        name: whole[name] for name in ("rounds", "stopped_early", "epsilon")
    }
    assert ended(folder / "cut") == ended(folder / "whole")
    assert (folder / "cut/model.safetensors").read_bytes() == (folder / "whole/model.safetensors").read_bytes()


def test_correlated_noise_is_paid_for_with_the_first_round_and_its_memory_goes(folder: Path) -> None:
    correlated = ("privacy.noise=correlated", "privacy.groups=3")
    summary = Run.create(small(*EARLY, *correlated), folder).train()
    assert summary["rounds"] == 1
    assert summary["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert not (folder / "private").exists()
    text = " ".join((folder / "statement.txt").read_text().split())
    assert "over 6 rounds, all of which are paid for with the first; it ended after 1." in text
    assert Run.open(folder).train()["epsilon"] == summary["epsilon"]


def silos(folder: Path, **given: Any) -> incrowd.Result:
    made = np.random.default_rng(0)
    x = made.normal(size=(200, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    parts = {"north": (x[:100], y[:100]), "south": (x[100:], y[100:])}
    federation = incrowd.Federation(
        nn.Linear(3, 2),
        incrowd.Clients.from_partitions(parts, classes=2, public=True, test=given.pop("test", None)),
        privacy=incrowd.Private(unit="record", epsilon=8.0, delta=1e-5, rounds=4),
        **given,
    )
    return federation.train(folder, progress=False)


@pytest.mark.slow
def test_silos_that_stop_give_the_rest_of_their_plans_back(folder: Path) -> None:
    stop = incrowd.Stop(watch="accuracy", target=0.01)
    found = silos(folder, test=(np.ones((4, 3), np.float32), np.arange(4) % 2), stop=stop)
    assert found.summary["rounds"] == 1
    assert found.summary["stopped_early"].startswith("accuracy on the test set is")
    assert all(epsilon < 8.0 for epsilon in found.summary["epsilon_by_silo"].values())
    for path in folder.glob("silos/*/ledger.sqlite"):
        with Ledger.read(path) as ledger:
            assert ledger.promised().epsilon == ledger.spent().epsilon
    with database_in(folder) as database:
        assert decision(stop, database.rounds()) == found.summary["stopped_early"]


def test_what_is_private_and_not_paid_for_cannot_be_watched(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"watch = 'counts': choose from 'loss' or 'accuracy'"):
        incrowd.Stop(watch="counts", patience=1)  # type: ignore[arg-type]  # as in TOML
    with pytest.raises(ConfigError, match=r"stop\.watch = 'loss': there are no test examples"):
        silos(folder / "b", stop=incrowd.Stop(patience=1))
    numbers = np.arange(40)
    data = incrowd.Clients.from_arrays(
        np.ones((40, 2)),
        numbers % 2,
        owner=numbers // 4,
        classes=2,
        public=True,
        test=(np.ones((4, 2)), numbers[:4] % 2),
    )
    check_watched(Stop(patience=1), data)
    assert not list(folder.iterdir())
