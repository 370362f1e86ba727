"""Private queries: clipped, paid, priced, and a function of each client's own examples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from incrowd._random import Floats, SeededRandomness
from incrowd.data import Clients
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.learning import ClientExamples, MeanQuery
from incrowd.learning.inputs import ClientTensors
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun

CLIENTS, EACH = 40, 5
BUDGET = Budget(epsilon=8.0, delta=1e-3)


TURNS = PlanConfig.in_turns(clients=CLIENTS, rounds=4, groups=2).calibrate(BUDGET)
QUERY = MeanQuery(name="columns", size=2, bound=4.0, vector=lambda own: own.features.mean(0))


def people(*, declared: int | None = None) -> Clients:
    rows = np.random.default_rng(3).normal([1.0, -2.0], 0.5, (CLIENTS * EACH, 2)).astype(np.float32)
    owner = np.repeat(np.arange(CLIENTS), EACH)
    return replace(Clients.from_arrays(rows, owner % 2, owner=owner, classes=2), declared=declared)


def planned(clip: Clip | MedianClip | None = None, *, clients: int = CLIENTS, **others: Any) -> Plan:
    config = PlanConfig(members=clients, schedule=constant(rounds=1, cohort=clients), sampling=Everyone, **others)
    return replace(config, clip=clip or config.clip).calibrate(BUDGET)


def run_of(plan: Plan, *, seed: int = 0, size: int = QUERY.width) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(seed), size=size)


def rows_of(query: MeanQuery, data: Clients, client: int) -> Floats:
    return query.row(ClientTensors.of(data), client)


@pytest.mark.parametrize("clip", [NormalisedClip(clip_norm=0.1), FixedClip(clip_norm=3.0)])
@pytest.mark.parametrize("noise_by", ["server", "party"])
def test_the_answer_is_the_mean_with_the_noise_that_it_states(clip: Clip, noise_by: str) -> None:
    data, plan = people(), planned(clip, noise_by=noise_by)
    truth = data.examples.features.reshape(CLIENTS, EACH, 2).mean((0, 1))
    found = [QUERY.ask(data, run_of(plan, seed=seed)) for seed in range(60)]
    off = np.array([one.mean - truth for one in found]) / found[0].noise_std
    assert np.abs(off.mean(0)).max() < 4 / np.sqrt(len(off))
    assert 0.8 < off.std() < 1.2  # and not two thirds, or three halves


def test_it_is_charged_as_a_round_of_its_plan_and_asked_once() -> None:
    private = run_of(planned())
    QUERY.ask(people(), private)
    assert private.next_round == 1
    assert 0 < private.statement().epsilon <= BUDGET.epsilon
    assert "query columns" in str(private.statement())
    with pytest.raises(ConfigError, match="round"):
        QUERY.ask(people(), private, number=1)
    with pytest.raises(BudgetExceeded):  # the ledger has no room for a second plan
        PrivateRun(planned(), ledger=private.ledger, randomness=SeededRandomness(1), size=3, label="again")


@pytest.mark.parametrize("value", [1e30, -50.0, np.inf, np.nan])
def test_no_vector_is_longer_than_the_bound(value: float) -> None:
    data = people()
    data.examples.features[:EACH] = value
    row = rows_of(QUERY, data, 0)
    assert np.isfinite(row).all()
    assert np.linalg.norm(row) <= 1 + 1e-12
    assert np.linalg.norm(rows_of(QUERY, data, 1)) > 0.4  # the control: a vector within the bound is not shortened


def test_a_client_s_vector_is_its_own_and_absent_clients_add_nothing() -> None:
    data = people()
    before = [rows_of(QUERY, data, client) for client in range(CLIENTS)]
    data.examples.features[:EACH] += 1
    after = [rows_of(QUERY, data, client) for client in range(CLIENTS)]
    assert not np.array_equal(before[0], after[0])
    assert all(np.array_equal(one, other) for one, other in zip(before[1:], after[1:], strict=True))
    declared = people(declared=44)
    answer = QUERY.ask(declared, run_of(planned(clients=44)))
    assert answer.mean == pytest.approx(np.array([1.0, -2.0]) * CLIENTS / 44, abs=5 * answer.noise_std)
    with pytest.raises(ConfigError, match="clients = 40: that is what the plan is for"):
        QUERY.ask(declared, run_of(planned()))


SEEN: list[int] = []


def remembers(own: ClientExamples) -> list[float]:
    SEEN.append(len(own.labels))
    return [len(SEEN), 0.0]


REFUSED: dict[str, Callable[[], object]] = {
    "clip": lambda: QUERY.ask(people(), run_of(planned(QuantileClip(clip_norm=1.0, bit_noise=6.0)))),
    "clip ": lambda: QUERY.ask(people(), run_of(planned(FixedClip(clip_norm=2.0**21)))),
    "noise": lambda: QUERY.ask(people(), run_of(TURNS)),
    "size": lambda: QUERY.ask(people(), run_of(planned(), size=2)),
    "vector": lambda: replace(QUERY, size=1).ask(people(), run_of(planned())),
    "vector ": lambda: replace(QUERY, vector=remembers).ask(people(), run_of(planned())),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_come_out_as_it_went_in_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        REFUSED[name]()
    assert caught.value.field == name.strip()


def test_a_client_that_returns_other_numbers_counts_as_zeros() -> None:
    def odd(own: ClientExamples) -> Tensor:
        found: Tensor = own.features[:, 0] if own.features.any() else torch.zeros(2)  # as many numbers as rows
        return found

    assert not rows_of(replace(QUERY, vector=odd), people(), 0).any()


@pytest.mark.parametrize("least", [0, EACH], ids=["at once", "of real clients alone"])
def test_a_vector_that_remembers_clients_is_refused(least: int) -> None:
    """Attack: the first client's mean moved the answers of all who came after it. A fixed vector is the control."""
    seen: list[Tensor] = []

    def running(own: ClientExamples) -> Tensor:
        if len(own.labels) >= least:
            seen.append(torch.as_tensor(own.features).mean(0))
        return torch.stack(seen).mean(0) if seen else torch.zeros(2)

    with pytest.raises(ConfigError, match="it remembers what it was called with"):
        replace(QUERY, vector=running).ask(people(), run_of(planned()))
    assert QUERY.ask(people(), run_of(planned())).mean.shape == (2,)
