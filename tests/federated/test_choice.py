"""A federation whose clients choose first what to learn from: the round of the choice, and what it changes."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.federated import FedAvg, State
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.plan.schedule import constant, preceded
from incrowd.privacy.release import PrivateRun
from tests.federated.test_centre import BUDGET, CLIENTS, ROUNDS, SERVER, plan_with
from tests.learning.cohorts import CLASSES, FEATURES, clients
from tests.learning.test_centre import MODEL
from tests.learning.test_choice import BOTH, LOCAL, PARTS, alone, of_kinds, told_by

CHOSEN = MODEL.size
PIXELS, PICTURES = (told_by(clients(), pixels=pixels) for pixels in (True, False))


def made(
    data: ClientTensors = PIXELS,
    plan: Plan | None = None,
    *,
    local: Local = LOCAL,
    ledger: Ledger | None = None,
    seed: int = 2,
) -> FedAvg:
    plan = plan or plan_with()
    ledger = ledger or Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(seed), size=MODEL.size)
    return FedAvg(engine=CohortEngine(MODEL, data, local), private=private, server=SERVER, init_scale=0.0)


def run(algorithm: FedAvg, state: State | None = None, *, until: int = ROUNDS) -> State:
    state = state or algorithm.init()
    while state.round < until:
        state, _ = algorithm.apply(state)
    return state


@pytest.mark.parametrize(("data", "chosen"), [(PIXELS, 1.0), (PICTURES, -1.0)], ids=["pixels", "pictures"])
def test_clients_choose_what_tells_their_examples_apart(data: ClientTensors, chosen: float) -> None:
    state = run(made(data), until=1)
    assert not state.weights[:CHOSEN].any()
    assert state.weights[CHOSEN] == chosen
    assert run(made(data)).weights[CHOSEN] == chosen
    assert state.tail_rounds == 0


def test_nobody_is_asked_without_noise() -> None:
    """Votes are counted with the noise of a round of the plan: where all agree, the mean is not quite that."""
    plan = plan_with()
    private = made(PIXELS, plan).private
    opened = private.round(0)
    opened.ask(made()._trainer(made().init().weights, None), present=lambda cohort: cohort)
    release = opened.release()
    told = release.mean[0] / release.clip_norm
    assert told != 1.0
    assert told == pytest.approx(1.0, abs=5 * plan.round(0).noise_multiplier / CLIENTS)


def test_the_servers_rounds_count_from_the_next() -> None:
    algorithm = made(local=BOTH)
    state, rates = algorithm.init(), []
    for _ in range(ROUNDS):
        state, report = algorithm.apply(state)
        rates.append(report.learning_rate)
    assert rates == [0.0, 0.0, *(SERVER.rate(number, ROUNDS - 2) for number in range(ROUNDS - 2))]


def test_what_was_chosen_changes_the_model_that_is_published() -> None:
    weights = run(made(PIXELS)).published.reshape(CLASSES, FEATURES + 1)
    assert not weights[:, :10].any()
    assert weights[:, 10:].any()
    weights = run(made(PICTURES)).published.reshape(CLASSES, FEATURES + 1)
    assert weights[:, :10].any()
    assert not weights[:, 10:-1].any()


@pytest.mark.parametrize("local", [LOCAL, BOTH])
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(local: Local) -> None:
    plan = plan_with()
    whole = run(made(plan=plan, local=local))
    for stop in range(ROUNDS + 1):
        ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        arrays = run(made(plan=plan, local=local, ledger=ledger), until=stop).to_arrays()
        resumed = made(plan=plan, local=local, ledger=ledger)
        again = run(resumed, resumed.init().restored(arrays))
        assert np.array_equal(again.weights, whole.weights)
        assert np.array_equal(again.published, whole.published)


def test_plans_that_it_does_not_fit_are_refused() -> None:
    plans = {
        "clip": plan_with(clip=QuantileClip(clip_norm=1.0, bit_noise=6.0)),
        "rounds": plan_with(schedule=constant(rounds=2, cohort=CLIENTS)),
    }
    for field, plan in plans.items():
        with pytest.raises(ConfigError, match=rf"local\.choice = '{field}'"):
            made(plan=plan, local=BOTH)
    made(plan=plans["rounds"])


def test_it_helps_where_pictures_mislead_and_costs_little_elsewhere() -> None:
    """Of many clients at a small budget: what is learnt from pictures alone knows nothing of what pixels tell."""
    sizes = (12,) * 100

    def accuracy(data: ClientTensors, *, choice: bool) -> float:
        rounds = constant(rounds=10, cohort=100)
        schedule = preceded(rounds, share=0.05) if choice else rounds
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            plan = PlanConfig(clients=100, schedule=schedule, sampling=Everyone).calibrate(
                Budget(epsilon=3.0, delta=1e-2)
            )
        local = LOCAL.replaced(choice=0.05 if choice else None, learning_rate=1.0, batch_size=None, label_shares=None)
        seen = data if choice else alone(data, PARTS[1])
        state = run(made(seen, plan, local=local), until=plan.rounds)
        rows = np.asarray(seen.features)
        return float(((rows @ state.published.reshape(CLASSES, -1).T).argmax(1) == data.labels.numpy()).mean())

    pixels, pictures = (told_by(clients(sizes), pixels=pixels, noise=1.0) for pixels in (True, False))
    assert accuracy(pixels, choice=True) > accuracy(pixels, choice=False) + 0.05
    assert accuracy(pictures, choice=True) > accuracy(pictures, choice=False) - 0.03


def test_where_nobody_can_tell_examples_are_seen_as_both() -> None:
    data = of_kinds(clients())
    same = replace(data, labels=data.labels * 0)
    assert [run(made(same, seed=seed), until=1).weights[CHOSEN] for seed in range(8)] == [0.5] * 8
