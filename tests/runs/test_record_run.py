"""Runs whose silos send sums of clipped gradients to a server that adds the noise, or which share it among them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import incrowd
from incrowd.audit.audit import Effort, audit
from incrowd.data import load_digits
from incrowd.errors import BudgetExceeded, ConfigError, LedgerMismatch
from incrowd.flower.simulation import Simulation
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.statement import SHARED_TRUST, SUMS_TRUST
from incrowd.runs.advice import advice
from incrowd.runs.config import Config, parse, tables
from incrowd.runs.dry_run import cost_of, dry_run
from incrowd.runs.folder import database_in
from incrowd.runs.ledgers import include_data
from incrowd.runs.run import Run
from incrowd.runs.work import work_of
from tests.runs.small import SEEDED
from tests.runs.small import SMALL as CLIENTS
from tests.runs.test_run import Watcher

SMALL = (
    "features={name='none'}",
    "model={kind='linear'}",
    "data.clients=3",
    "local={batch_size=400}",
    "privacy={unit='record', noise_by='server', epsilon=4, delta=1e-5, rounds=6}",
    "server={learning_rate=2.0}",
    "run={randomness='seeded', seed=7}",
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning"),
]


def small(*overrides: str) -> Config:
    return made(*SMALL, *overrides)


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def test_one_plan_and_one_ledger_protect_the_records_of_all_silos(tmp_path: Path) -> None:
    summary = Run.create(small(), tmp_path / "run").train()
    report = verify(tmp_path / "run" / "ledger.sqlite")
    assert report["intact"]
    assert (report["events"], summary["rounds"]) == (6, 6)
    assert 3.99 < summary["epsilon"] <= 4.0
    assert summary["communications"] == 6 * 3  # of silos, not of records
    with database_in(tmp_path / "run") as database:
        speeds = [(one.clients_per_second or 0.0) * (one.seconds or 0.0) for one in database.rounds()]
    assert all(3 <= speed < 400 for speed in speeds)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert (statement["unit"], statement["trust"]) == ("record", SUMS_TRUST)
    records = len(load_digits().train.labels)
    assert f"400 of {records} records of all silos a round, 6 rounds" in statement["sampler"]
    assert summary["accuracy"] > 0.5
    assert not (tmp_path / "run" / "silos").exists()


def test_a_run_that_was_stopped_goes_on_to_the_very_same_weights(tmp_path: Path) -> None:
    Run.create(small(), tmp_path / "whole").train()
    with pytest.raises(KeyboardInterrupt):
        Run.create(small(), tmp_path / "stopped").train([Watcher(stop_after=3)])
    Run.open(tmp_path / "stopped").train()
    whole, stopped = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(np.array_equal(one, stopped[name]) for name, one in whole.items())


@pytest.mark.parametrize("silos", [1, 5])
def test_almost_without_noise_it_is_clipped_gradient_descent_on_all_records(silos: int, tmp_path: Path) -> None:
    loose = (
        "privacy.epsilon=1e7",
        "model.init_scale=0.0",
        "local={}",
        f"data.clients={silos}",
        "privacy.clip_norm=0.5",
    )
    Run.create(small(*loose), tmp_path / "run").train()
    train = load_digits().train
    x = torch.from_numpy(train.values(slice(None))).flatten(1)
    y = torch.from_numpy(train.labels)
    module = nn.Linear(64, 10)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    found = weights(tmp_path / "run")
    with torch.no_grad():
        for _ in range(6):
            slope = torch.softmax(module(x), 1) - nn.functional.one_hot(y, 10)
            norms = slope.norm(dim=1) * (x.square().sum(1) + 1).sqrt()
            slope = slope * (0.5 / norms.clamp_min(0.5))[:, None]
            module.weight.sub_(2.0 * slope.T @ x / len(y))
            module.bias.sub_(2.0 * slope.sum(0) / len(y))
    largest = max(np.abs(one).max() for one in found.values())
    for mine, theirs in zip(sorted(found.items()), sorted(module.state_dict().items()), strict=True):
        assert np.abs(mine[1] - theirs[1].numpy()).max() < 0.02 * largest


def test_the_front_door_takes_declared_records_and_keeps_one_budget(tmp_path: Path) -> None:
    made = np.random.default_rng(0)
    x = made.normal(size=(700, 5)).astype(np.float32)
    parts = {"north": (x[:300], (x[:300, 0] > 0).astype(int)), "south": (x[300:], (x[300:, 0] > 0).astype(int))}
    data = incrowd.Clients.from_partitions(parts, classes=2, name="wards", clients=2)

    def federation(*records: int) -> incrowd.Federation:
        privacy = incrowd.Private(
            unit="record",
            noise_by="server",
            epsilon=2.0,
            delta=1e-5,
            rounds=4,
            records=records,
            ledger=str(tmp_path / "ledger"),
        )
        return incrowd.Federation(nn.Linear(5, 2), data, privacy=privacy)

    with pytest.raises(ConfigError, match="silo 1"):  # 300 are held
        federation(200, 400).train(tmp_path / "refused", progress=False)
    result = federation(310, 410).train(tmp_path / "run", progress=False)
    assert result.epsilon <= 2.0
    assert "720 records of all silos" in str(result.statement)
    with pytest.raises(BudgetExceeded):
        federation(310, 410).train(tmp_path / "again", progress=False)
    with Ledger.read(tmp_path / "ledger") as ledger:
        assert ledger.data_identity.unit == "record"


def test_a_dry_run_and_advice_speak_of_all_records() -> None:
    spend, left, budget = cost_of(work_of(small("privacy.room=1.0")))
    assert (round(spend, 2), round(budget, 2)) == (4.0, 5.0)
    assert left < 1.1
    assert dry_run(small("privacy.rounds=2"))["clients"] == 3
    said = " ".join(advice(work_of(small("privacy.epsilon=0.001", "data.clients=1"))))
    assert "noise is" in said
    with pytest.raises(ConfigError, match="public"):
        include_data(tables(overrides=SMALL))


def test_an_audit_attacks_the_one_plan_of_all_silos() -> None:
    found = audit(None, overrides=(*SMALL, "privacy.rounds=2"), effort=Effort(canaries=700))
    assert found.holds, found.violations
    assert found.claimed == pytest.approx(4.0, abs=0.01)
    assert found.notes[0].startswith("attacked: all silos")


@pytest.mark.parametrize("order", [("party", "server"), ("server", "party")])
@pytest.mark.parametrize("alike", [False, True])
def test_the_same_records_have_no_second_budget_with_noise_by_another(
    order: tuple[str, str], alike: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that most silos have are alike by chance: the fingerprints of silos decide."""
    monkeypatch.setenv("INCROWD_STATE", str(tmp_path / "state"))
    made = np.random.default_rng(0)
    x = made.integers(0, 2, (400, 5)) if alike else made.normal(size=(400, 5))
    rows, labels = x.astype(np.float32), (x.sum(1) > 2).astype(np.int64)

    def train(noise_by: Any, name: str, silos: slice = slice(None)) -> None:
        owner = np.repeat([0, 1], [380, 20])[silos]
        records = (380, 20) if silos == slice(None) else (20,)
        data = incrowd.Clients.from_arrays(
            rows[silos], labels[silos], owner=owner, classes=2, name=name, clients=len(records)
        )
        privacy = incrowd.Private(unit="record", noise_by=noise_by, epsilon=1, delta=1e-5, rounds=1, records=records)
        incrowd.Federation(nn.Linear(5, 2), data, privacy=privacy).train(
            tmp_path / f"{noise_by}-{name}", progress=False
        )

    train(order[0], "wards")
    with pytest.raises(LedgerMismatch, match=r"charged to|are those of"):
        train(order[1], "wards")
    if order[0] == "server":
        with pytest.raises(LedgerMismatch, match=r"charged to|are those of"):
            train("party", "small", slice(380, None))


def made(*overrides: str) -> Config:
    return parse(tables(overrides=overrides))


SHARED = "privacy.noise_by='parties'"
UNITS = pytest.mark.parametrize("settings", [(*CLIENTS, *SEEDED), SMALL], ids=["client", "record"])


@UNITS
def test_a_run_costs_what_a_server_costs_and_trusts_none(settings: tuple[str, ...], tmp_path: Path) -> None:
    shared = Run.create(made(*settings, SHARED, "privacy.colluders=2"), tmp_path / "shared").train()
    central = Run.create(made(*settings), tmp_path / "central").train()
    assert shared["epsilon"] == pytest.approx(central["epsilon"], abs=1e-6)
    statement = json.loads((tmp_path / "shared" / "statement.json").read_text())
    parties = 12 if "client" in statement["unit"] else 3
    assert statement["trust"] == SHARED_TRUST.format(parties=parties, colluders=2)
    assert shared["accuracy"] > 0.6 * central["accuracy"]


@UNITS
def test_networks_refuse_it_by_name(settings: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="noise_by = 'parties'"):
        Simulation(workers=1).train(Run.create(made(*settings, SHARED), tmp_path / "run"))


def test_clients_who_may_be_missing_are_refused(tmp_path: Path) -> None:
    rows, owner = np.zeros((38, 3), np.float32), np.repeat(range(19), 2)
    data = incrowd.Clients.from_arrays(rows, owner % 2, owner=owner, classes=2, clients=20, name="wards")
    privacy: Any = incrowd.Private(epsilon=2.0, delta=1e-3, rounds=2, noise_by="parties")
    with pytest.raises(ConfigError, match="not how many there are"):
        incrowd.Federation(nn.Linear(3, 2), data, privacy=privacy).train(tmp_path / "run", progress=False)
