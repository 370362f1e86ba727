"""Runs of silos: each pays for itself, is killed and goes on, and leaves when its budget is spent."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from incrowd.errors import BudgetExceeded, LedgerMismatch
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.runs.config import Config, parse, tables
from incrowd.runs.folder import Database, Summary
from incrowd.runs.run import Run
from incrowd.runs.trackers import progress
from incrowd.runs.work import assemble_silos
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in

ROUNDS, KILLED = 3, -signal.SIGKILL
SMALL = (
    "features={name='none'}",
    "model={kind='linear'}",
    "data.clients=2",
    "local={learning_rate=2.0, epochs=2}",  # batches of all records, whose price takes no time
    f"privacy={{unit='record', epsilon=8, delta=1e-5, rounds={ROUNDS}}}",
    "run={}",
    "server={}",
)
SEEDED = ("run.randomness=seeded", "run.seed=7")


pytestmark = pytest.mark.usefixtures("one_thread")


def small(*overrides: str) -> Config:
    return parse(tables(overrides=(*SMALL, *overrides)))


def ledgers(folder: Path) -> list[Path]:
    return sorted(folder.glob("silos/*/ledger.sqlite"))


def check_budgets(folder: Path, *, events: int | None = None, silos: int = 2) -> None:
    """Every ledger is intact and within its budget; after a whole run, it is met."""
    assert len(ledgers(folder)) == silos
    for path in ledgers(folder):
        Ledger.open(path).close()  # takes an interrupted write back
        report = verify(path)
        assert report["intact"], report
        assert report["epsilon"] is not None
        assert report["epsilon"] <= 8.0
        if events is not None:
            assert report["events"] == events
            assert report["epsilon"] > 0.999 * 8


def rows(folder: Path) -> list[dict[str, Any]]:
    database = Database(folder / "run.sqlite")
    found = [record.to_json() | {"seconds": 0, "clients_per_second": 0} for record in database.rounds()]
    database.close()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """A simulation that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, Run.create(small(*SEEDED), folder).train()


def test_each_silo_meets_its_budget_on_a_ledger_of_its_own(whole: tuple[Path, Summary]) -> None:
    folder, summary = whole
    check_budgets(folder, events=ROUNDS)
    assert summary["rounds"] == ROUNDS
    assert set(summary["epsilon_by_silo"]) == {"silo-1", "silo-2"}
    assert 0.999 * 8 < summary["epsilon"] <= 8
    assert summary["stopped"] == []
    assert summary["accuracy"] > 0.5
    found = rows(folder)
    assert [standing["silo"] for standing in found[-1]["silos"]] == ["silo-1", "silo-2"]
    assert (folder / "model.safetensors").exists()
    assert json.loads((folder / "summary.json").read_text())["simulated"]
    text = (folder / "statement.txt").read_text()
    assert text.startswith("silo-1, silo-2 may claim:")
    assert "SIMULATION" in text
    assert Run.open(folder).train() == summary  # it is over: nothing is spent
    check_budgets(folder, events=ROUNDS)


PLACES = [
    Place("privacy/paid.py", "round", "call", 2),
    Place("privacy/ledger/ledger.py", "charge", "return", 3),
    Place("privacy/mechanism/grid.py", "add", "return", 5),
    Place("algorithms/silos.py", "answer", "return", 3),
    Place("runs/round_loop.py", "answer", "return", 4),
    Place("algorithms/fedavg.py", "apply", "return", 2),
    Place("runs/folder.py", "add", "return", 2),
    Place("runs/run.py", "_finished", "call", 1),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.function}-{place.happening}-{place.time}")
def test_a_seeded_run_killed_anywhere_ends_as_if_it_had_not_been(
    folder: Path, whole: tuple[Path, Summary], place: Place
) -> None:
    Run.create(small(*SEEDED), folder / "run")
    assert status_of(start(lambda: killed_in(place, Run.open(folder / "run").train))) == KILLED
    Run.open(folder / "run").train()
    for name in ("model.safetensors", "statement.txt"):
        assert (folder / "run" / name).read_bytes() == (whole[0] / name).read_bytes()
    assert rows(folder / "run") == rows(whole[0])
    check_budgets(folder / "run", events=ROUNDS)


LOSES = {("charge", 3), ("add", 5), ("answer", 3)}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.function}-{place.happening}-{place.time}")
def test_in_earnest_what_a_silo_paid_for_and_did_not_send_is_lost_for_it_alone(folder: Path, place: Place) -> None:
    Run.create(small(), folder / "run")
    assert status_of(start(lambda: killed_in(place, Run.open(folder / "run").train))) == KILLED
    Run.open(folder / "run").train()
    absences = [standing["absence"] for row in rows(folder / "run") for standing in row["silos"]]
    lost = (place.function, place.time) in LOSES and "outbox" not in place.file
    assert absences.count("round lost") == int(lost)
    assert len(absences) == 2 * ROUNDS
    check_budgets(folder / "run", events=ROUNDS)


def test_a_run_killed_in_its_first_round_goes_on_from_the_weights_that_the_silos_were_sent(folder: Path) -> None:
    config = small("model.init_scale=3.0", "server.learning_rate=1e-12", "privacy.rounds=1")
    Run.create(config, folder / "run")
    place = Place("runs/round_loop.py", "answer", "return", 1)
    assert status_of(start(lambda: killed_in(place, Run.open(folder / "run").train))) == KILLED
    first = load_file(folder / "run/checkpoints/round-000000.safetensors")["weights"]
    Run.open(folder / "run").train()
    last = load_file(folder / "run/checkpoints/round-000001.safetensors")["weights"]
    np.testing.assert_allclose(last, first, rtol=0, atol=1e-6)
    assert np.abs(first).max() > 0.1


def test_a_silo_with_less_to_spend_leaves_and_the_others_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small("privacy.epsilon=[8, 3]", "privacy.noise_multiplier=2.2", "privacy.rounds=6")
    summary = Run.create(config, folder / "run").train([progress(sys.stderr)])
    assert summary["stopped"] == ["silo-2"]
    assert summary["epsilon_by_silo"]["silo-2"] <= 3 < summary["epsilon_by_silo"]["silo-1"] <= 8
    assert "stopped: silo-2" in capsys.readouterr().err
    absences = [[standing["absence"] for standing in row["silos"]] for row in rows(folder / "run")]
    assert [pair[0] for pair in absences] == [None] * 6
    assert absences[0][1] is None
    assert absences[-1][1] == "budget spent"
    assert "silo-1 may claim" in (folder / "run/statement.txt").read_text()
    for epsilons in ("0.1", "[8.0, 0.1]", "[0.1, 8.0]"):  # a silo that cannot pay for a round
        with pytest.raises(BudgetExceeded, match=r"one round costs epsilon = .* and the budget is 0\.1"):
            Run.create(small("privacy.noise_multiplier=2.2", f"privacy.epsilon={epsilons}"), folder / "none")
        assert not (folder / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "changed"),
    [((), "begun with data_identity"), (("data.public=false", "privacy.records=750"), "divided among silos before")],
)
def test_ledgers_that_outlive_a_run_remember_what_it_spent(folder: Path, extra: tuple[str, ...], changed: str) -> None:
    kept = (f"privacy.ledger='{folder / 'kept'}'", *extra)
    Run.create(small(*kept, "privacy.rounds=2", "privacy.noise_multiplier=4.0"), folder / "first").train()
    spent = verify(folder / "kept/silo-1.sqlite")["epsilon"]
    assert spent is not None
    assert 0 < spent < 8
    Run.create(small(*kept, "privacy.epsilon=6", "privacy.room=2"), folder / "second").train()
    after = verify(folder / "kept/silo-1.sqlite")
    assert (after["events"], after["intact"]) == (2 + ROUNDS, True)
    assert spent < 6 < (after["epsilon"] or 0) <= 8
    with pytest.raises(BudgetExceeded, match=r"together with all that is charged and reserved"):
        Run.create(small(*kept), folder / "third")
    assert verify(folder / "kept/silo-1.sqlite") == after
    for error, why, overrides in (
        (BudgetExceeded, "the budget is 8", ["privacy.epsilon=9", "privacy.room=100"]),
        (LedgerMismatch, changed, ["data.clients=3", "privacy.records=500"]),
    ):
        with pytest.raises(error, match=why):
            Run.create(small(*kept, *overrides), folder / "fourth")
    assert not (folder / "third").exists()
    assert not (folder / "fourth").exists()
    assert not (folder / "kept/silo-3.sqlite").exists()


@pytest.mark.parametrize("place", [0, 1])
def test_a_silo_whose_ledger_has_no_room_refuses_the_run_and_nobody_pays(folder: Path, place: int) -> None:
    kept = (f"privacy.ledger='{folder / 'kept'}'", "privacy.room=1")
    Run.create(small(*kept, "privacy.rounds=1", "privacy.epsilon=2", "privacy.room=7"), folder / "first")
    path = folder / f"kept/silo-{place + 1}.sqlite"
    with Ledger.open(path) as ledger:
        ledger.charge(assemble_silos(small("privacy.epsilon=7", "privacy.rounds=1")).plans[place].round(0).event)
    with pytest.raises(BudgetExceeded, match="together with all that is charged"):
        Run.create(small(*kept), folder / "second")
    assert not (folder / "second").exists()
    for each, events in ((path, 1), (folder / f"kept/silo-{2 - place}.sqlite", 0)):
        assert verify(each)["events"] == events
        with Ledger.read(each) as ledger:
            assert not ledger.reservations()
    Run.create(small(*kept, "privacy.epsilon=3", "privacy.room=6"), folder / "third").train()  # the control
