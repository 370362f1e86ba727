"""A federation that learns around a centre: its first round, and what the others make of it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from incrowd import Local, ServerOptimizer
from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.federated import FedAvg, State
from incrowd.learning import ClientTensors, CohortEngine, linear
from incrowd.learning.centre import shrunk
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.promise import NoisePlace, Promise
from incrowd.privacy.plan.sampling import Everyone, Poisson
from incrowd.privacy.plan.schedule import Schedule, constant, preceded
from incrowd.privacy.release import PrivateRun
from tests.learning.cohorts import CLASSES, FEATURES, SIZES, clients
from tests.learning.test_centre import CONSTANT, LOCAL, MODEL, unit

BUDGET = Budget(epsilon=30.0, delta=1e-3)
CLIENTS, ROUNDS = len(SIZES), 5
SERVER = ServerOptimizer(learning_rate=2.0, decay="linear", average="tail")


def plan_with(
    *,
    clip: Clip | MedianClip | None = None,
    schedule: Schedule | None = None,
    sampling: Sampling = Everyone,
    place: NoisePlace = "central",
) -> Plan:
    cohort = CLIENTS if sampling is Everyone else CLIENTS / 2
    schedule = schedule or preceded(constant(rounds=ROUNDS - 1, cohort=cohort), share=0.2)
    config = PlanConfig(clients=CLIENTS, schedule=schedule, sampling=sampling, place=place)
    return replace(config, clip=clip or config.clip).calibrate(BUDGET)


def made(
    plan: Promise | None = None,
    *,
    server: ServerOptimizer = SERVER,
    local: Local = LOCAL,
    ledger: Ledger | None = None,
    constant: float = CONSTANT,
) -> FedAvg:
    plan = plan or plan_with()
    engine = CohortEngine(MODEL, replace(unit(clients()), constant=constant), local)
    ledger = ledger or Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(2), size=MODEL.size)
    return FedAvg(engine=engine, private=private, server=server, init_scale=0.0)


def run(algorithm: FedAvg, state: State | None = None, *, until: int = ROUNDS) -> State:
    state = state or algorithm.init()
    while state.round < until:
        state, _ = algorithm.apply(state)
    return state


def test_the_first_round_finds_the_centre_and_moves_no_weight() -> None:
    algorithm = made()
    opened = made().private.round(0, carry=algorithm.private.start())
    opened.ask(made()._trainer(algorithm.init().weights, None), present=lambda cohort: cohort)
    release = opened.release()
    state = run(algorithm, until=1)
    deviation = release.noise_std / CLIENTS / release.clip_norm
    assert not state.weights[: MODEL.size].any()
    expected = shrunk((release.mean / release.clip_norm)[:FEATURES], deviation)
    assert state.weights[MODEL.size :] == pytest.approx(expected, abs=1e-12)
    assert expected.any()
    assert not state.tail.any()
    assert state.tail_rounds == 0


@pytest.mark.parametrize("clip", [NormalisedClip(clip_norm=0.1), FixedClip(clip_norm=4.0)])
def test_the_bound_changes_nothing_of_the_centre(clip: Clip) -> None:
    """With little noise it is the mean of the clients' means, whatever the bound."""
    data = unit(clients())
    means = [np.asarray(data.features)[data.examples(client)][:, :-1].mean(axis=0) for client in range(CLIENTS)]
    plan = replace(plan_with(clip=clip), budget=BUDGET)
    found = run(made(plan), until=1).weights[MODEL.size :]
    release_noise = plan.round(0).noise_multiplier / CLIENTS
    assert np.abs(found - np.mean(means, axis=0)).max() < 5 * release_noise
    assert np.linalg.norm(found - np.mean(means, axis=0)) < np.linalg.norm(np.mean(means, axis=0))


def test_half_the_length_has_half_the_noise() -> None:
    data = unit(clients())
    means = [np.asarray(data.features)[data.examples(client)][:, :-1].mean(axis=0) for client in range(CLIENTS)]
    plan = plan_with()

    def error(length: float) -> float:
        shortened = [mean * min(1.0, length / np.linalg.norm(mean)) for mean in means]
        algorithm = made(plan, local=LOCAL.replaced(centre_length=length))
        release = algorithm.private.round(0, carry=algorithm.private.start())
        release.ask(algorithm._trainer(algorithm.init().weights, None), present=lambda cohort: cohort)
        told = length * release.release().mean[:FEATURES]
        return float(np.linalg.norm(told - np.mean(shortened, axis=0)))

    assert error(0.5) == pytest.approx(error(1.0) / 2, rel=1e-3)


@pytest.mark.parametrize("kind", ["sgd", "momentum"])
def test_the_servers_rounds_count_from_the_next(kind: str) -> None:
    server = SERVER.replaced(kind=kind)
    algorithm = made(server=server)
    state, report = algorithm.apply(algorithm.init())
    assert report.learning_rate == 0.0
    rates = []
    for _ in range(1, ROUNDS):
        state, report = algorithm.apply(state)
        rates.append(report.learning_rate)
    assert rates == [server.rate(number, ROUNDS - 1) for number in range(ROUNDS - 1)]
    assert state.tail_rounds == sum(server.counts(number, ROUNDS - 1) for number in range(ROUNDS - 1))


def test_the_centre_stays_what_the_first_round_made_it() -> None:
    algorithm = made()
    first, last = run(algorithm, until=1), run(made())
    assert np.array_equal(first.weights[MODEL.size :], last.weights[MODEL.size :])
    assert not np.array_equal(first.weights[: MODEL.size], last.weights[: MODEL.size])
    assert last.published.size == MODEL.size
    assert last.tail[MODEL.size :] / last.tail_rounds == pytest.approx(first.weights[MODEL.size :])


PLANS: dict[str, Callable[[], Plan]] = {
    "everyone": plan_with,
    "poisson": lambda: plan_with(sampling=Poisson),
    "local": lambda: plan_with(place="local"),
    "fixed": lambda: plan_with(clip=FixedClip(clip_norm=0.3)),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(name: str, kind: str) -> None:
    plan, server = PLANS[name](), SERVER.replaced(kind=kind)
    whole = run(made(plan, server=server))
    for stop in range(ROUNDS + 1):
        ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        arrays = run(made(plan, server=server, ledger=ledger), until=stop).to_arrays()
        resumed = made(plan, server=server, ledger=ledger)
        again = run(resumed, resumed.init().restored(arrays))
        assert np.array_equal(again.weights, whole.weights)
        assert np.array_equal(again.published, whole.published)


def test_it_costs_one_round_of_the_plan_and_no_more() -> None:
    plan = plan_with()
    algorithm = made(plan)
    run(algorithm)
    assert algorithm.private.next_round == plan.rounds == ROUNDS
    assert algorithm.private.statement().epsilon <= BUDGET.epsilon
    noises = [plan.round(number).noise_multiplier for number in range(ROUNDS)]
    assert sum(noise**-2 for noise in noises) * 0.2 == pytest.approx(noises[0] ** -2)


REFUSED: dict[str, Callable[[], FedAvg]] = {
    "clip": lambda: made(plan_with(clip=QuantileClip(clip_norm=1.0, bit_noise=6.0))),
    "clip of the median": lambda: made(plan_with(clip=MedianClip())),
    "noise": lambda: made(CorrelatedPlan(clients=CLIENTS, rounds=4, groups=2, budget=BUDGET)),
    "rounds": lambda: made(plan_with(schedule=constant(rounds=1, cohort=CLIENTS))),
    "constant": lambda: made(constant=0.0),
    "clip_norm": lambda: made(plan_with(clip=FixedClip(clip_norm=2.0**21))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_plans_that_it_does_not_fit_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"local\.centre = '?{name.split(maxsplit=1)[0]}"):
        REFUSED[name]()


def test_a_model_with_a_bias_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(ConfigError, match=r"local\.centre"):
        CohortEngine(linear(FEATURES + 1, CLASSES), unit(clients()), LOCAL)


def test_it_helps_where_examples_have_much_in_common() -> None:
    """Accuracy at the same budget is higher with a centre: the data differ little around their mean."""
    generator = np.random.default_rng(5)
    centres, shared = generator.normal(size=(CLASSES, FEATURES)), 4 * generator.normal(size=FEATURES)

    def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.integers(0, CLASSES, count)
        rows = shared + 0.5 * centres[labels] + 0.5 * generator.normal(size=(count, FEATURES))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return np.hstack([rows, np.full((count, 1), CONSTANT)]).astype(np.float32), labels

    features, labels = examples(60 * 10)
    data = ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        offsets=np.arange(0, 601, 10),
        indices=np.arange(600),
        constant=CONSTANT,
    )
    test, wanted = examples(1000)

    def accuracy(local: Local, schedule: Schedule) -> float:
        plan = PlanConfig(clients=60, schedule=schedule, sampling=Everyone).calibrate(Budget(epsilon=4.0, delta=1e-3))
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(3), size=MODEL.size)
        engine = CohortEngine(MODEL, data, local)
        server = SERVER.replaced(learning_rate=12.0)
        state = run(FedAvg(engine=engine, private=private, server=server, init_scale=0.0), until=plan.rounds)
        return float(((test @ state.published.reshape(CLASSES, -1).T).argmax(axis=1) == wanted).mean())

    plain = Local(learning_rate=1.0)
    usual = constant(rounds=10, cohort=60)
    with_centre = accuracy(plain.replaced(centre=0.1), preceded(usual, share=0.1))
    assert with_centre > accuracy(plain, usual) + 0.03
