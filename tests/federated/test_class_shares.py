"""A federation most of whose labels are alike: what it learns when it has asked how frequent classes are."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from incrowd import Local, ServerOptimizer
from incrowd._random import Floats, SeededRandomness
from incrowd.errors import ConfigError
from incrowd.federated import FedAvg, State
from incrowd.learning import ClientTensors, CohortEngine, linear
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.plan.schedule import constant, preceded
from incrowd.privacy.release import PrivateRun
from tests.learning.test_class_shares import LOCAL, PLAIN

CLIENTS, EACH, FEATURES, ROUNDS = 60, 50, 4, 12
MODEL = linear(FEATURES, 3)
ONCE: dict[str, Any] = {"batch_size": None, "label_shares": 0.03}
BUDGET = Budget(epsilon=8.0, delta=1e-3)
SERVER = ServerOptimizer(learning_rate=12.0, decay="linear", average="tail")


def people(*, sort: bool) -> ClientTensors:
    """Nine of ten labels are 1; the others depend on a noisy line. With `sort` most clients have one class alone."""
    generator = np.random.default_rng(8)
    features = generator.normal(size=(CLIENTS * EACH, FEATURES)).astype(np.float32)
    line = features[:, 0] + generator.normal(0, 1.2, len(features))
    labels = np.digitize(line, np.quantile(line, [0.05, 0.95]))
    order = np.argsort(labels, kind="stable") if sort else np.arange(len(labels))
    return ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        offsets=np.arange(CLIENTS + 1) * EACH,
        indices=order,
    )


def plan_with(*, asked: bool = True, rounds: int = ROUNDS) -> Plan:
    schedule = constant(rounds=rounds, cohort=CLIENTS)
    schedule = preceded(schedule, share=0.03) if asked else schedule
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return PlanConfig(clients=CLIENTS, schedule=schedule, sampling=Everyone).calibrate(BUDGET)


def made(data: ClientTensors, plan: Plan, local: Local, ledger: Ledger | None = None) -> FedAvg:
    ledger = ledger or Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(2), size=MODEL.size)
    return FedAvg(engine=CohortEngine(MODEL, data, local), private=private, server=SERVER, init_scale=0.0)


def run(algorithm: FedAvg, state: State | None = None, *, until: int) -> State:
    state = state or algorithm.init()
    while state.round < until:
        state, _ = algorithm.apply(state)
    return state


def right(data: ClientTensors, weights: Floats) -> float:
    """How often the published model is right for everyone's examples."""
    matrix, bias = weights[: 3 * FEATURES].reshape(3, FEATURES), weights[3 * FEATURES :]
    found = (np.asarray(data.features) @ matrix.T + bias).argmax(1)
    return float((found == data.labels.numpy()).mean())


@pytest.mark.parametrize("sort", [False, True], ids=["alike", "sorted"])
def test_the_model_knows_which_class_is_frequent(sort: bool) -> None:
    data, plan = people(sort=sort), plan_with()
    state = run(made(data, plan, LOCAL.replaced(**ONCE)), until=plan.rounds)
    assert state.weights[MODEL.size + 1] > 0.4  # of 0.57
    assert right(data, state.published) >= 0.895
    if not sort:  # the control: what label shares alone make of it
        plan = plan_with(asked=False)
        blind = run(made(data, plan, PLAIN.replaced(**ONCE)), until=plan.rounds)
        assert right(data, blind.published) < 0.87


def test_where_classes_are_equally_frequent_nothing_is_found() -> None:
    data = people(sort=False)
    data = replace(data, labels=torch.arange(len(data.labels)) % 3)
    state = run(made(data, plan_with(), LOCAL), until=1)
    assert not state.weights[MODEL.size :].any()


@pytest.mark.parametrize("stop", range(0, ROUNDS + 2, 3))
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(stop: int) -> None:
    data, plan = people(sort=True), plan_with()
    whole = run(made(data, plan, LOCAL), until=plan.rounds)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    arrays = run(made(data, plan, LOCAL, ledger), until=stop).to_arrays()
    resumed = made(data, plan, LOCAL, ledger)
    again = run(resumed, resumed.init().restored(arrays), until=plan.rounds)
    assert np.array_equal(again.weights, whole.weights)
    assert np.array_equal(again.published, whole.published)


def test_plans_that_it_does_not_fit_are_refused() -> None:
    adaptive = PlanConfig(clients=CLIENTS, schedule=constant(rounds=4, cohort=CLIENTS), sampling=Everyone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        plan = replace(adaptive, clip=QuantileClip(clip_norm=1.0, bit_noise=6.0)).calibrate(BUDGET)
    with pytest.raises(ConfigError, match=r"local\.class_shares = 'clip'"):
        made(people(sort=False), plan, LOCAL)
    with pytest.raises(ConfigError, match=r"local\.class_shares = 'rounds'"):
        made(people(sort=False), plan_with(asked=False, rounds=1), LOCAL)
