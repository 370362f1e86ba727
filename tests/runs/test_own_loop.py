"""A training loop of one's own: the run keeps its ledger, folder, resume and statement."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd.data import iid, load_digits
from incrowd.errors import ConfigError
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.recipes import config_of
from incrowd.runs.run import OwnRound

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = load_digits()
DATA = incrowd.Clients.of(
    DIGITS, iid(DIGITS.train.labels, clients=30, randomness=incrowd.SeededRandomness(0)), public=True
)
SEEDED = incrowd.RunOptions(randomness="seeded", seed=3)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def federation(**changes: Any) -> incrowd.Federation:
    privacy = incrowd.Private(epsilon=8, delta=1e-3, rounds=4, sampling="poisson", cohort=10)
    return incrowd.Federation(linear(), DATA, **({"privacy": privacy, "run": SEEDED} | changes))


def trained(module: nn.Module, features: Any, labels: torch.Tensor) -> nn.Module:
    """One step on all of a client's examples."""
    loss = nn.functional.cross_entropy(module(features), labels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch says no types
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    return module


def updates(of: OwnRound) -> Mapping[int, nn.Module]:
    return {client: trained(of.module(), *of.examples(client)) for client in of.cohort}


def train(one: incrowd.Federation, folder: Path, *, rounds: int = 99) -> None:
    with one.session(folder, progress=False) as session:
        for number, each in enumerate(session):
            if number == rounds:
                return
            each.submit(updates(each))


def test_the_same_steps_as_the_engines_give_the_same_model(tmp_path: Path) -> None:
    whole = federation(local=incrowd.Local(learning_rate=0.1, batch_size=None))
    engine = whole.train(tmp_path / "engine", progress=False)
    train(federation(), tmp_path / "own")
    own = federation().result(tmp_path / "own")
    moved = [result.model.weights.numpy() for result in (engine, own)]
    assert np.abs(moved[0] - moved[1]).max() < 1e-4 * np.abs(moved[0]).max()
    assert own.epsilon == engine.epsilon
    assert "third-party code" in str(own.statement)
    assert "training loop" in str(own.statement)
    assert "third-party" not in str(engine.statement)


def test_a_loop_that_was_stopped_goes_on_to_the_very_same_model(tmp_path: Path) -> None:
    train(federation(), tmp_path / "whole")
    train(federation(), tmp_path / "parts", rounds=2)
    report = verify(tmp_path / "parts" / "ledger.sqlite")
    assert report["events"] == 2
    train(federation(), tmp_path / "parts")
    train(federation(), tmp_path / "parts")  # a run that is over has no rounds left
    whole, parts = (federation().result(tmp_path / name).model.weights for name in ("whole", "parts"))
    assert torch.equal(whole, parts)
    with federation().session(tmp_path / "parts") as session:
        assert list(session) == []


def test_a_round_without_updates_costs_nothing_and_is_asked_for_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="submit its updates"), federation().session(tmp_path / "run") as session:
        cohorts = [each.cohort for each in session]
    assert verify(tmp_path / "run" / "ledger.sqlite")["events"] == 0
    with federation().session(tmp_path / "run") as session:
        first = next(iter(session))
        assert first.number == 0
        cohorts = [first.cohort]
    assert cohorts[0]


def test_only_updates_of_the_cohort_enter_and_each_once(tmp_path: Path) -> None:
    with federation().session(tmp_path / "run") as session:
        for each in session:
            stranger = next(client for client in range(30) if client not in each.cohort)
            for wrong in ({stranger: np.zeros(650)}, {each.cohort[1]: np.zeros(3)}):
                with pytest.raises(ConfigError, match="clients of the cohort"):
                    each.submit({each.cohort[0]: np.zeros(650), **wrong})
            each.submit({client: np.full(650, np.inf) for client in each.cohort[:1]})  # counts as zero
            with pytest.raises(ConfigError, match="are submitted"):
                each.submit({})
    assert torch.isfinite(federation().result(tmp_path / "run").model.weights).all()


def test_the_round_of_a_label_query_is_not_the_loops(tmp_path: Path) -> None:
    settings = {"data": {"clients": 20}, "recipe": "general", "privacy": {"epsilon": 8.0, "delta": 1e-3, "rounds": 3}}
    assert config_of(settings).local.label_distribution is not None
    one = incrowd.Federation.from_tables({**settings, "run": {}})
    numbers = []
    with one.session(tmp_path / "run") as session:
        for each in session:
            numbers.append(each.number)
            each.submit({})
    assert numbers == [1, 2]


def test_silos_and_algorithms_with_numbers_of_their_own_are_refused(tmp_path: Path) -> None:
    records = incrowd.Private(unit="record", epsilon=8, delta=1e-5, rounds=2)
    with pytest.raises(ConfigError, match=r"privacy\.unit"):
        incrowd.Federation(linear(), DATA, privacy=records).session(tmp_path / "silos")
    scaffold = incrowd.Local(algorithm="scaffold", learning_rate=0.1)
    with pytest.raises(ConfigError, match=r"local\.algorithm"):
        federation(local=scaffold).session(tmp_path / "scaffold")
