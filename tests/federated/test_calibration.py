"""A federation that asks at the end how strongly its model should speak."""

import warnings
from dataclasses import replace

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
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.plan.schedule import constant, followed, preceded
from incrowd.privacy.release import PrivateRun

CLIENTS, EACH, FEATURES, ROUNDS, CONSTANT = 60, 20, 30, 10, 0.1
MODEL = linear(FEATURES + 1, 3, bias=False)
UNCALIBRATED = Local(learning_rate=1.0, label_shares=0.03, class_shares=0.05)
LOCAL = UNCALIBRATED.replaced(calibration=0.05)
BUDGET = Budget(epsilon=3.0, delta=1e-3)
SERVER = ServerOptimizer(learning_rate=12.0, decay="linear", average="tail")


def people(*, says: float, clients: int = CLIENTS) -> ClientTensors:
    """Of three classes, 70, 20 and 10 %; the examples say it with this loudness, or nothing at all."""
    generator = np.random.default_rng(8)
    labels = generator.choice(3, p=[0.7, 0.2, 0.1], size=clients * EACH)
    rows = generator.normal(size=(len(labels), FEATURES))
    rows[:, :3] += says * np.eye(3)[labels]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    features = np.hstack([rows, np.full((len(rows), 1), CONSTANT)]).astype(np.float32)
    return ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        offsets=np.arange(clients + 1) * EACH,
        indices=np.arange(len(labels)),
        constant=CONSTANT,
    )


def plan_with(local: Local = LOCAL) -> Plan:
    schedule = constant(rounds=ROUNDS, cohort=CLIENTS)
    if local.calibration is not None:
        schedule = followed(schedule, share=0.05)
    schedule = preceded(schedule, share=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return PlanConfig(clients=CLIENTS, schedule=schedule, sampling=Everyone).calibrate(BUDGET)


def made(
    data: ClientTensors, plan: Plan, local: Local = LOCAL, *, ledger: Ledger | None = None, seed: int = 2
) -> FedAvg:
    ledger = ledger or Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(seed), size=MODEL.size)
    return FedAvg(engine=CohortEngine(MODEL, data, local), private=private, server=SERVER, init_scale=0.0)


def run(algorithm: FedAvg, state: State | None = None, *, until: int = ROUNDS + 2) -> State:
    state = state or algorithm.init()
    while state.round < until:
        state, _ = algorithm.apply(state)
    return state


def strength(state: State) -> float | None:
    assert state.opening is not None
    return state.opening.strength(state.weights)


def right(data: ClientTensors, weights: Floats) -> float:
    outputs = np.asarray(data.features) @ weights.reshape(3, -1).T
    return float((outputs.argmax(1) == data.labels.numpy()).mean())


def test_a_model_that_has_learnt_nothing_says_the_frequent_class() -> None:
    def accuracy(local: Local) -> float:
        data, plan = people(says=0.0), plan_with(local)
        return float(np.mean([right(data, run(made(data, plan, local, seed=k), until=plan.rounds).published)
                              for k in range(5)]))  # fmt: skip

    frequent = float((people(says=0.0).labels == 0).double().mean())
    assert accuracy(LOCAL) > frequent - 0.01
    assert accuracy(UNCALIBRATED) < frequent - 0.03  # the control


def test_a_model_that_has_learnt_much_says_it() -> None:
    data = people(says=12.0)
    state = run(made(data, plan_with()))
    assert state.weights[-1] >= 1.0
    assert right(data, state.published) > 0.95


def test_the_last_round_shows_what_would_be_published_and_moves_nothing_else() -> None:
    algorithm = made(people(says=3.0), plan_with())
    before = run(algorithm, until=ROUNDS + 1)
    mean = before.tail[: MODEL.size] / before.tail_rounds
    assert np.array_equal(before.start, [*mean, *before.weights[MODEL.size : -1], -1.0])
    after, report = algorithm.apply(before)
    assert report.learning_rate == 0.0
    assert strength(after) == after.weights[-1] > 0
    assert strength(before) is None
    assert np.array_equal(after.weights[:-1], before.start[:-1])
    known = before.opening
    assert known is not None
    assert np.array_equal(after.published, known.published(np.array([*before.start[:-1], after.weights[-1]])))
    earlier = run(made(people(says=3.0), plan_with()), until=4)
    assert np.array_equal(earlier.start, earlier.weights)  # the control
    assert run(made(people(says=3.0), plan_with()), until=2).weights[-1] == 0.0


def test_a_last_round_that_is_lost_leaves_the_model_as_it_is() -> None:
    before = run(made(people(says=3.0), plan_with()), until=ROUNDS + 1)
    lost = replace(before, round=before.round + 1)
    assert np.array_equal(lost.published, before.published)
    assert strength(lost) is None


@pytest.mark.parametrize("stop", [0, 1, 5, ROUNDS, ROUNDS + 1])
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(stop: int) -> None:
    data, plan = people(says=3.0), plan_with()
    whole = run(made(data, plan))
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    arrays = run(made(data, plan, ledger=ledger), until=stop).to_arrays()
    resumed = made(data, plan, ledger=ledger)
    again = run(resumed, resumed.init().restored(arrays))
    assert np.array_equal(again.weights, whole.weights)
    assert np.array_equal(again.published, whole.published)


def test_plans_and_examples_that_it_does_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.calibration = 'constant': let the features have a constant"):
        made(replace(people(says=0.0), constant=0.0), plan_with())
    schedule = constant(rounds=2, cohort=CLIENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        plan = PlanConfig(clients=CLIENTS, schedule=schedule, sampling=Everyone).calibrate(BUDGET)
    with pytest.raises(ConfigError, match=r"'rounds': plan at least 3, of which one is for it"):
        made(people(says=0.0), plan)
