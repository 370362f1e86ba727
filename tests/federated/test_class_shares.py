"""A federation most of whose labels are alike: what it learns when it has asked how frequent classes are."""

import warnings
from collections.abc import Callable
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
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning, Sampling
from incrowd.privacy.plan.promise import NoisePlace, Promise
from incrowd.privacy.plan.sampling import Everyone, Poisson
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


def plan_with(
    *,
    asked: bool = True,
    rounds: int = ROUNDS,
    clip: Clip | MedianClip | None = None,
    sampling: Sampling = Everyone,
    place: NoisePlace = "central",
) -> Plan:
    schedule = constant(rounds=rounds, cohort=CLIENTS if sampling is Everyone else CLIENTS / 2)
    schedule = preceded(schedule, share=0.03) if asked else schedule
    config = PlanConfig(clients=CLIENTS, schedule=schedule, sampling=sampling, place=place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return replace(config, clip=clip or config.clip).calibrate(BUDGET)


def made(data: ClientTensors, plan: Promise, local: Local, ledger: Ledger | None = None) -> FedAvg:
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


@pytest.mark.parametrize("clip", [NormalisedClip(clip_norm=0.1), FixedClip(clip_norm=4.0)])
def test_the_bound_changes_nothing_of_the_shares(clip: Clip) -> None:
    data, plan = people(sort=False), plan_with(clip=clip)
    state = run(made(data, plan, LOCAL), until=1)
    truth = np.bincount(data.labels.numpy(), minlength=3) / len(data.labels) - 1 / 3
    assert np.abs(state.weights[MODEL.size :] - truth).max() < 5 * plan.round(0).noise_multiplier / CLIENTS
    assert not state.weights[: MODEL.size].any()


def test_the_servers_rounds_count_from_the_next_and_shares_stay() -> None:
    algorithm = made(people(sort=False), plan_with(), LOCAL)
    first, report = algorithm.apply(algorithm.init())
    state, rates = first, [report.learning_rate]
    while state.round <= ROUNDS:
        state, report = algorithm.apply(state)
        rates.append(report.learning_rate)
    assert rates == [0.0, *(SERVER.rate(number, ROUNDS) for number in range(ROUNDS))]
    assert state.tail_rounds == sum(SERVER.counts(number, ROUNDS) for number in range(ROUNDS))
    assert np.array_equal(state.weights[MODEL.size :], first.weights[MODEL.size :])
    assert state.published.size == MODEL.size
    assert algorithm.private.next_round == ROUNDS + 1
    assert algorithm.private.statement().epsilon <= BUDGET.epsilon


PLANS: dict[str, Callable[[], Plan]] = {
    "everyone": plan_with,
    "poisson": lambda: plan_with(sampling=Poisson),
    "local": lambda: plan_with(place="local"),
    "fixed": lambda: plan_with(clip=FixedClip(clip_norm=0.3)),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("stop", [0, 1, ROUNDS // 2, ROUNDS + 1])
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(name: str, stop: int) -> None:
    data, plan = people(sort=True), PLANS[name]()
    whole = run(made(data, plan, LOCAL), until=plan.rounds)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    arrays = run(made(data, plan, LOCAL, ledger), until=stop).to_arrays()
    resumed = made(data, plan, LOCAL, ledger)
    again = run(resumed, resumed.init().restored(arrays), until=plan.rounds)
    assert np.array_equal(again.weights, whole.weights)
    assert np.array_equal(again.published, whole.published)


REFUSED: dict[str, Callable[[], Promise]] = {
    "clip": lambda: plan_with(clip=QuantileClip(clip_norm=1.0, bit_noise=6.0)),
    "clip of the median": lambda: plan_with(clip=MedianClip()),
    "clip_norm": lambda: plan_with(clip=FixedClip(clip_norm=2.0**21)),
    "noise": lambda: CorrelatedPlan(clients=CLIENTS, rounds=4, groups=2, budget=BUDGET),
    "rounds": lambda: plan_with(asked=False, rounds=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_plans_that_it_does_not_fit_are_refused(name: str) -> None:
    plan = REFUSED[name]()
    with pytest.raises(ConfigError, match=rf"local\.class_shares = '{name.split(maxsplit=1)[0]}'"):
        made(people(sort=False), plan, LOCAL)
