"""Attack: a plan that is not what was asked for, or not for those who follow it, is taken without a word."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from incrowd import Local, ServerOptimizer
from incrowd._random import SeededRandomness
from incrowd.algorithms import ClientCohort, FedAvg
from incrowd.data import Clients, Partition
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, MeanQuery, linear
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.planner import Comparison, Question
from incrowd.privacy.plan.sampling import FixedSize, Poisson, Schedule, Step, constant
from incrowd.privacy.release import PrivateRun
from tests.algorithms.conftest import CLASSES, FEATURES

pytestmark = pytest.mark.watched

BUDGET = Budget(epsilon=4.0, delta=1e-4)
SEEDED = SeededRandomness(seed=5)
THERE = 20
QUERY = MeanQuery(name="label", size=1, vector=lambda own: own.labels.float().mean()[None])


@pytest.fixture
def twenty(data: Clients) -> Clients:
    """Twenty clients of three examples each."""
    lists = [np.arange(3 * client, 3 * client + 3) for client in range(THERE)]
    return replace(data, partition=Partition.of(lists))


def planned(clients: int) -> Plan:
    schedule = Schedule((Step(rounds=2, cohort=5, noise_multiplier=3.0),))
    return PlanConfig(members=clients, schedule=schedule, accountants=("RDP",)).plan(BUDGET)


def run_of(plan: Plan, *, size: int) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SEEDED, size=size)


def averaged(plan: Plan, data: Clients) -> FedAvg[ClientCohort]:
    model = linear(FEATURES, CLASSES)
    engine = CohortEngine(model, ClientTensors.of(data), Local(learning_rate=0.1, batch_size=3))
    cohort = ClientCohort(engine=engine, private=run_of(plan, size=model.size))
    return FedAvg(cohort, server=ServerOptimizer())


class _Unasked(ClientCohort):
    """The broken twin: it takes any plan, and does what the plan says."""

    def __init__(self, engine: CohortEngine, private: PrivateRun) -> None:
        self.engine, self.private = engine, private


@pytest.mark.slow
def test_a_plan_for_ten_of_twenty_clients_is_refused(twenty: Clients) -> None:
    for clients in (10, 19, 21, 40):
        with pytest.raises(ConfigError, match=f"clients = {clients}: that is what the plan is for, .* has 20: plan"):
            averaged(planned(clients), twenty)
        with pytest.raises(ConfigError, match=f"clients = {clients}"):
            QUERY.ask(twenty, run_of(planned(clients), size=QUERY.width))
    whole = averaged(planned(THERE), twenty)
    assert whole.apply(whole.init())[0].round == 1
    control = _Unasked(whole.cohort.engine, run_of(planned(10), size=whole.cohort.size))
    asked = {int(client) for number in range(2) for client in control.private.cohort(number)}
    assert asked < set(range(10))  # the twin never asks half of the clients, and takes the others twice as often


@pytest.mark.parametrize("name", [*SAMPLING, "nonsense", None, Poisson(clients=10, cohort=5)])
def test_a_sampling_that_is_no_sampler_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"sampling = .*: give one of the classes Poisson, FixedSize, Everyone"):
        PlanConfig(members=10, schedule=constant(rounds=1, cohort=10), sampling=name)
    with pytest.raises(ConfigError, match="sampling = "):
        Question(clients=10, rounds=1, cohort=10, epsilon=1.0, delta=1e-5, sampling=name).answer()
    for kind in SAMPLING.values():
        config = PlanConfig(members=10, schedule=constant(rounds=1, cohort=10), sampling=kind)
        assert type(config.sampler(config.schedule.steps[0])) is kind


def test_a_name_would_have_become_poisson() -> None:
    """The control: a plan that looks only for the classes it knows, as the broken one did."""

    class _Lenient(PlanConfig):
        def __post_init__(self) -> None:
            """Check nothing."""

    said: Any = "fixed"
    twin = _Lenient(members=10, schedule=constant(rounds=1, cohort=5), sampling=said)
    step = twin.schedule.steps[0]
    assert type(twin.sampler(step)) is Poisson
    assert twin.sampler(step).relation is not FixedSize(clients=10, cohort=5).relation


GIVEN: dict[str, Any] = {"clients": (100,), "deltas": (1e-3,), "accountant": "gdp", "sampling": "everyone"}


@pytest.mark.parametrize("cohorts", [{}, {"cohorts": (100,)}, {"shares": (1.0,)}])
def test_one_number_too_many_is_refused(cohorts: dict[str, Any]) -> None:
    settled = GIVEN | cohorts | {"rounds": (30,), "noise_multiplier": 9.0}
    with pytest.raises(ConfigError, match=r"epsilon = 1\.0: noise, rounds and cohort are given and decide it"):
        Comparison(**settled, epsilons=(1.0,))
    (plan,) = Comparison(**settled, epsilons=(None,)).plans()
    assert plan.price.epsilon > 1.0  # the control: what was ignored is not what it costs
    assert plan.budget.epsilon == plan.price.epsilon


@pytest.mark.parametrize("left_out", ["rounds", "noise_multiplier"])
def test_one_number_too_few_is_refused(left_out: str) -> None:
    settled = GIVEN | {"rounds": (30,), "noise_multiplier": 9.0}
    del settled[left_out]
    with pytest.raises(ConfigError, match="epsilon = None: state it"):
        Comparison(**settled, epsilons=(None,))
    assert next(iter(Comparison(**settled, epsilons=(1.0,)).plans())).price.epsilon <= 1.0


def test_all_five_numbers_are_one_too_many_for_a_question() -> None:
    with pytest.raises(ConfigError, match=r"unknowns = \[\]: leave out exactly one"):
        Question(clients=10, rounds=1, cohort=5, noise_multiplier=1.0, epsilon=1.0, delta=1e-5).answer()
