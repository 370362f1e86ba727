import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from incrowd.algorithms import score
from incrowd.errors import ConfigError, DataError, IncrowdError, LedgerRolledBack
from incrowd.learning import linear
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.plan.sampling import Schedule, Step
from incrowd.runs.folder import Database, Record
from incrowd.runs.run import Run
from incrowd.types import Facts
from tests.privacy.ledgers import start, status_of
from tests.runs.small import clients_of, planned, seeded, small


class Watcher:
    """Takes note of what it is told; can stop a run after a round, as a user does."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.told: list[object] = []
        self.past: Sequence[Record] = ()
        self._stop_after = stop_after

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        self.past = past
        self.told.append(settings["rounds"])

    def round(self, record: Record) -> None:
        self.told.append(record.round)
        if record.round + 1 == self._stop_after:
            raise KeyboardInterrupt

    def end(self, summary: Facts | None) -> None:
        self.told.append("stopped" if summary is None else "done")


def stopped(folder: Path, *overrides: str, after: int, simulated: bool = True) -> Run:
    """A run that its user stopped."""
    run = Run.create((seeded if simulated else small)(*overrides), folder)
    with pytest.raises(KeyboardInterrupt):
        run.train([Watcher(stop_after=after)])
    return run


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def rows(folder: Path) -> list[Record]:
    database = Database(folder / "run.sqlite")
    found = database.rounds()
    database.close()
    return found


def test_a_run_leaves_everything_in_its_folder(folder: Path) -> None:
    run = Run.create(small(), folder / "run")
    watcher = Watcher()
    summary = run.train([watcher])
    assert watcher.told == [4, 0, 1, 2, 3, "done"]
    assert sorted(path.name for path in (folder / "run").iterdir()) == [
        "checkpoints", "ledger.json", "ledger.sqlite", "ledger.sqlite.witness", "model.safetensors",
        "run.lock", "run.sqlite", "statement.json", "statement.txt", "summary.json",
    ]  # fmt: skip
    kept = json.loads(json.dumps(summary))
    assert json.loads((folder / "run" / "summary.json").read_text()) == kept
    assert json.loads((folder / "run" / "statement.json").read_text()) == kept["statement"]
    assert (folder / "run" / "statement.txt").read_text() == summary["statement"]["text"] + "\n"
    assert summary["simulated"] is False
    assert summary["rounds"] == 4
    assert summary["communications"] == 48
    assert summary["budget"] == {"epsilon": 8.0, "delta": 1e-3}
    assert 7.99 < summary["epsilon"] <= 8
    report = verify(folder / "run" / "ledger.sqlite")
    assert (report["intact"], report["events"]) == (True, 4)
    assert report["epsilon"] == pytest.approx(summary["epsilon"])


def test_the_accuracy_is_that_of_the_released_model_on_the_public_test_set(folder: Path) -> None:
    run = Run.create(seeded(), folder)
    summary = run.train()
    test = run.work.data.test
    assert test is not None
    module = linear(64, 10).module
    module.load_state_dict(load_file(folder / "model.safetensors"))
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert score(linear(64, 10), flat.numpy(), test).accuracy == summary["accuracy"] == rows(folder)[-1].accuracy
    assert "public: held by the server" in summary["test_set"]


def test_rows_say_what_a_round_did_and_only_a_simulation_sees_inside(folder: Path) -> None:
    Run.create(seeded("run.diagnose=true"), folder / "simulation").train()
    Run.create(small("run.report_every=3"), folder / "real").train()
    simulation, real = rows(folder / "simulation"), rows(folder / "real")
    for row in simulation:
        assert row.simulation is not None
        assert set(row.simulation) == {"observed", "diagnostics"}
    for found in (simulation, real):
        assert [row.round for row in found] == [0, 1, 2, 3]
        epsilons = [row.epsilon for row in found]
        assert epsilons == sorted(epsilons)
        assert all(row.clip_norm == 1.0 and row.noise_std is not None for row in found)
    assert [row.simulation for row in real] == [None] * 4
    assert [row.accuracy is not None for row in real] == [False, False, True, True]


@pytest.mark.slow
def test_a_schedule_that_is_given_is_taken_as_it_is_now_and_later(folder: Path) -> None:
    steps = (Step(rounds=1, cohort=3, noise_multiplier=40.0), Step(rounds=2, cohort=6, noise_multiplier=50.0))
    run = Run.create(seeded("privacy.sampling=fixed", "privacy.cohort=6"), folder, schedule=Schedule(steps))
    for found in (run, Run.open(folder)):
        assert planned(clients_of(found)).config.schedule.steps == steps
    assert run.train()["communications"] == 15
    loud = Schedule((Step(rounds=1, cohort=6, noise_multiplier=0.1),))
    with pytest.raises(ConfigError, match="these rounds cost"):
        Run.create(seeded("privacy.sampling=poisson", "privacy.cohort=6"), folder / "loud", schedule=loud)
    assert not (folder / "loud").exists()


def test_with_local_noise_nobody_is_trusted(folder: Path) -> None:
    summary = Run.create(small("privacy.noise_by=party"), folder).train()
    assert "nobody is trusted" in summary["statement"]["trust"]
    assert summary["epsilon"] <= 8
    first = rows(folder)[0].noise_std
    assert first is not None
    Run.create(small(), folder / "central").train()
    central = rows(folder / "central")[0].noise_std
    assert central is not None
    assert first > 6 * central  # twice the sensitivity, and the noise of each of twelve clients


# Where a run may begin


def test_starting_afresh_on_a_spent_ledger_is_refused(folder: Path) -> None:
    Run.create(small(), folder).train()
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith("ledger.sqlite"):
            path.unlink()
    for left in ("ledger.sqlite", "ledger.sqlite.witness"):
        with pytest.raises(ConfigError, match=f"it holds {left} of a run"):
            Run.create(small(), folder)
        (folder / left).unlink()


# Going on


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(folder: Path, after: int) -> None:
    options = ("server.kind=adam", "privacy.clip.kind=quantile", "privacy.clip.bit_noise=5.0")
    whole = Run.create(seeded(*options), folder / "whole").train()
    stopped(folder / "parts", *options, after=after)
    watcher = Watcher()
    summary = Run.open(folder / "parts").train([watcher])
    assert weights(folder / "parts") == weights(folder / "whole")
    assert watcher.told == [4, *range(after, 4), "done"]
    assert [record.round for record in watcher.past] == list(range(after))
    assert summary["rounds_lost"] == 0
    assert summary["accuracy"] == whole["accuracy"]
    assert [row.accuracy for row in rows(folder / "parts")] == [row.accuracy for row in rows(folder / "whole")]


CORRELATED = ("privacy={epsilon=8.0, delta=1e-3, rounds=6, noise='correlated', groups=3}", "run.report_every=6")


@pytest.mark.parametrize("after", [2, 5])
def test_correlated_noise_remembers_over_a_stop(folder: Path, after: int) -> None:
    Run.create(seeded(*CORRELATED), folder / "whole").train()
    stopped(folder / "parts", *CORRELATED, after=after)
    summary = Run.open(folder / "parts").train()
    assert weights(folder / "parts") == weights(folder / "whole")
    assert 7.99 < summary["epsilon"] <= 8.0
    assert "take turns in 3 groups" in summary["statement"]["sampler"]
    assert verify(folder / "parts" / "ledger.sqlite")["events"] == 6


def test_without_its_memory_correlated_noise_does_not_go_on(folder: Path) -> None:
    """A round that was paid and then cut off took the memory of its noise along; a second noise is not covered."""
    run = stopped(folder, *CORRELATED, after=2, simulated=False)
    ledger = run.folder / "ledger.sqlite"
    with Ledger.open(ledger) as opened:
        reservation = opened.reservations()[0]
        opened.charge(reservation.runs[-1][0], reservation=reservation.label, note={"round": 2})
    with pytest.raises(DataError, match="lost the memory of its correlated noise with round 2"):
        Run.open(folder).train()
    assert verify(ledger)["events"] == 3


def test_rare_checkpoints_are_made_up_for_when_a_user_stops(folder: Path) -> None:
    stopped(folder, "run.checkpoint_every=3", after=2, simulated=False)
    assert Run.open(folder).train()["rounds_lost"] == 0


def test_a_run_that_is_over_says_its_result_again_and_spends_nothing(folder: Path) -> None:
    first = Run.create(small(), folder).train()
    head = verify(folder / "ledger.sqlite")["head"]
    model = weights(folder)
    again = Run.open(folder).train()
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert weights(folder) == model
    assert verify(folder / "ledger.sqlite")["head"] == head


def test_a_ledger_that_is_gone_or_older_is_not_replaced(folder: Path) -> None:
    stopped(folder, after=3)
    ledger, witness = folder / "ledger.sqlite", folder / "ledger.sqlite.witness"
    ledger.unlink()
    with pytest.raises(LedgerRolledBack):
        Run.open(folder).train()
    witness.unlink()
    with pytest.raises(ConfigError, match="a new one needs it"):
        Run.open(folder).train()
    plan = clients_of(Run.open(folder)).plan
    Ledger.open(ledger, budget=plan.budget, relation=plan.relation, data_identity="digits").close()
    with pytest.raises(LedgerRolledBack, match="is not the ledger that this run was begun with"):
        Run.open(folder).train()


def test_an_older_copy_of_the_ledger_with_its_witness_is_seen_by_the_checkpoints(folder: Path) -> None:
    stopped(folder, after=1)
    files = [folder / "ledger.sqlite", folder / "ledger.sqlite.witness"]
    older = [file.read_bytes() for file in files]
    with pytest.raises(KeyboardInterrupt):
        Run.open(folder).train([Watcher(stop_after=3)])
    for file, content in zip(files, older, strict=True):
        file.write_bytes(content)
    with pytest.raises(LedgerRolledBack, match="has a checkpoint after 3 rounds, its ledger knows 1"):
        Run.open(folder).train()


def test_missing_checkpoints_are_not_replaced(folder: Path) -> None:
    stopped(folder, after=2)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="is empty, and 2 rounds are paid for: put it back"):
        Run.open(folder).train()


@pytest.mark.parametrize("edit", ["budget", "noise"])
def test_edited_settings_do_not_fit_the_ledger(folder: Path, edit: str) -> None:
    stopped(folder, after=2)
    database = Database(folder / "run.sqlite")
    settings = database.settings
    if edit == "budget":
        settings["config"]["privacy"]["epsilon"] = 9.0
    else:
        settings["schedule"][0]["noise_multiplier"] *= 2
    database.write_settings(settings)
    database.close()
    with pytest.raises(IncrowdError, match="was begun with budget" if edit == "budget" else "it has other events"):
        Run.open(folder).train()


def test_two_processes_cannot_train_in_one_folder(folder: Path) -> None:
    run = stopped(folder, after=1)

    class Meanwhile(Watcher):
        def round(self, record: Record) -> None:
            self.told.append(status_of(start(lambda: refused(run))))

    watcher = Meanwhile()
    run.train([watcher])
    assert watcher.told == [4, 0, 0, 0, "done"]


def refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="another process trains in this folder"):
        run.train()
