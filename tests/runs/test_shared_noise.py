"""Runs whose clients, or silos, share the noise of their sum: at the price of one server, and refused where it has no
masks or no proof.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import nn

import incrowd
from incrowd.errors import ConfigError
from incrowd.flower.simulation import Simulation
from incrowd.privacy.statement import SHARED_TRUST
from incrowd.runs.config import Config, tables
from incrowd.runs.recipes import config_of
from incrowd.runs.run import Run
from tests.runs.small import SEEDED
from tests.runs.small import SMALL as CLIENTS
from tests.runs.test_record_run import SMALL as RECORDS

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning"),
]

SHARED = "privacy.noise_by='parties'"
UNITS = pytest.mark.parametrize("settings", [(*CLIENTS, *SEEDED), RECORDS], ids=["client", "record"])


def made(*overrides: str) -> Config:
    return config_of(tables(overrides=overrides))


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
def test_a_seeded_run_goes_on_to_the_very_same_weights(settings: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("one", "other"):
        Run.create(made(*settings, SHARED), tmp_path / name).train()
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert all(np.array_equal(weights, other[name]) for name, weights in one.items())


@pytest.mark.parametrize(
    ("settings", "more", "field"),
    [
        (CLIENTS, ("privacy.colluders=1",), "privacy.colluders"),
        (RECORDS, ("privacy.colluders=1",), "privacy.colluders"),
        (CLIENTS, (SHARED, "privacy.colluders=12"), "privacy.colluders"),
        (RECORDS, (SHARED, "privacy.colluders=3"), "privacy.colluders"),
        (CLIENTS, (SHARED, "privacy.sampling=poisson", "privacy.cohort=6"), "privacy.sampling"),
        (CLIENTS, (SHARED, "privacy.noise=correlated", "privacy.groups=3"), "privacy.noise_by"),
        (CLIENTS, (SHARED, "privacy.clip={kind='median'}"), "privacy.clip"),
        (CLIENTS, (SHARED, "privacy.clip={kind='quantile', clip_norm=1.0}"), "privacy.clip"),
        (RECORDS, (SHARED, "privacy.noise_multiplier=3"), "privacy.noise_multiplier"),
        (RECORDS, (SHARED, "local={learning_rate=2}"), "local.learning_rate"),
    ],
)
def test_settings_without_a_proof_or_a_meaning_are_refused(
    settings: tuple[str, ...], more: tuple[str, ...], field: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        Run.create(made(*settings, *more), tmp_path / "run")
    assert refused.value.field == field
    assert not (tmp_path / "run").exists()


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
