"""A run that workers train is the run of one machine, to the last bit."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from incrowd.errors import ConfigError, DataError
from incrowd.flower.simulation import Simulation, Workers, over, stock_of
from incrowd.runs.config import parse, tables
from incrowd.runs.run import Run
from tests.runs import small, test_record_run, test_silo_run
from tests.runs.small import SEEDED, clients_of

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning"),
]

CLIENTS = (*small.SMALL, *SEEDED)
SILOS = (*test_silo_run.SMALL, *SEEDED)
KINDS = {
    "central": CLIENTS,
    "fixed": (*CLIENTS, "privacy.clip={kind='fixed',clip_norm=0.5}"),
    "a layer each": (*CLIENTS, "privacy.clip={kind='per-layer',clip_norms=[0.5]}"),
    "each number": (*CLIENTS, "privacy.clip={kind='elementwise',limit=0.01}"),
    "poisson": (*CLIENTS, "privacy.sampling=poisson", "privacy.cohort=6", "privacy.epsilon=20"),
    "quantile": (*CLIENTS, "privacy.clip={kind='quantile',clip_norm=0.1,bit_noise=4}", "privacy.epsilon=20"),
    "local": (*CLIENTS, "privacy.noise_by=party", "privacy.sampling=everyone"),
    "correlated": (*CLIENTS, "privacy.noise=correlated", "privacy.groups=3"),
    "silos": SILOS,
    "records": test_record_run.SMALL,
}


def run_in(folder: Path, overrides: Sequence[str]) -> Run:
    return Run.create(parse(tables(overrides=overrides)), folder)


def here(run: Run) -> Workers:
    """Two workers in this process."""
    made = [stock_of(run)() for _ in range(2)]
    return lambda tasks: [made[place % 2](*task) for place, task in enumerate(tasks)]


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def facts(summary: Any) -> Any:
    return {name: summary.get(name) for name in ("epsilon", "epsilon_by_silo", "accuracy", "rounds", "statement")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_workers_release_the_model_of_one_machine(kind: str, tmp_path: Path) -> None:
    one, other = (run_in(tmp_path / name, KINDS[kind]) for name in ("one", "other"))
    expected, found = one.train(), over(other, here(other), blocks=5).train()
    np.testing.assert_equal(weights(tmp_path / "other"), weights(tmp_path / "one"))
    assert facts(found) == facts(expected)


@pytest.mark.parametrize("overrides", [CLIENTS, SILOS], ids=["clients", "silos"])
def test_a_run_whose_worker_fails_goes_on_elsewhere(overrides: Sequence[str], tmp_path: Path) -> None:
    run_in(tmp_path / "one", overrides).train()
    run = run_in(tmp_path / "other", overrides)
    workers, rounds = here(run), iter(range(2))

    def failing(tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        found = workers(tasks)
        if next(rounds, None) is None:
            raise DataError("a worker failed")
        return found

    with pytest.raises(DataError, match="a worker failed"):
        over(run, failing, blocks=2).train()
    Run.open(tmp_path / "other").train()
    np.testing.assert_equal(weights(tmp_path / "other"), weights(tmp_path / "one"))


@pytest.mark.parametrize(
    ("overrides", "field"), [(("privacy.clip={kind='median'}",), "clip"), (("run.diagnose=true",), "diagnose")]
)
def test_what_cannot_be_known_elsewhere_is_refused_before_anything_is_spent(
    overrides: Sequence[str], field: str, tmp_path: Path
) -> None:
    run = run_in(tmp_path / "run", (*CLIENTS, *overrides))
    with pytest.raises(ConfigError, match=field):
        Simulation(workers=1).train(run)
    with clients_of(run).payer.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.charges() == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["central", "silos", "records"])
def test_flower_releases_the_model_of_one_machine(kind: str, tmp_path: Path) -> None:
    run_in(tmp_path / "one", KINDS[kind]).train()
    sets = [word for override in KINDS[kind] for word in ("--set", override)]
    words = ["flower", "simulate", *sets, "--workers", "2", "--blocks", "3", "--out", str(tmp_path / "other")]
    done = subprocess.run([sys.executable, "-m", "incrowd", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_equal(weights(tmp_path / "other"), weights(tmp_path / "one"))
