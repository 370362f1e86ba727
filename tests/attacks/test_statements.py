"""Code of users: a statement is what the ledger says, and a plan or an audit what it says it is, whoever hands it over.

Seeds, other runs and forgetful ledgers show; a plan for others than those who follow it is refused; who would like an
audit to pass knows what it looks at, and does right by that alone.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from incrowd import Local, ServerOptimizer
from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.algorithms import ClientCohort, FedAvg
from incrowd.audit.audit import Effort, audit_plan
from incrowd.data import Clients, Partition
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, MeanQuery, linear
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip, MedianClip
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.planner import Comparison, Question
from incrowd.privacy.plan.sampling import FixedSize, Poisson, constant
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import CENTRAL_TRUST, MEDIAN, OTHER_TRUST, SIMULATION, Statement
from tests.algorithms.conftest import CLASSES, FEATURES
from tests.attacks.released import ledger_for, plan_of, run_of
from tests.audit.broken import less_noise_in_earnest, one_client_each_round

pytestmark = pytest.mark.watched


BUDGET = Budget(epsilon=50.0, delta=1e-6)
EARNEST, SEEDED = SystemRandomness(), SeededRandomness(5)


def a_plan(rounds: int = 2) -> Plan:
    return plan_of(rounds=rounds, noise=2.0, budget=BUDGET, clip=FixedClip(clip_norm=1.0))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger", budget=BUDGET, relation=a_plan().relation, data_identity="patients")


def a_run(ledger: Ledger, *sources: Randomness, label: str = "run") -> PrivateRun:
    """A run whose rounds have these sources of randomness, one after the other."""
    runs = [run_of(a_plan(len(sources)), ledger=ledger, randomness=source, label=label) for source in sources]
    for number, run in enumerate(runs):
        asked = run.round(number)
        asked.add(np.ones((1, 1)), clients=[2])
        asked.release()
    return runs[-1]


def marked(statement: Statement) -> bool:
    return SIMULATION in statement.caveats and "SIMULATION" in statement.text()


def test_a_run_in_earnest_has_no_caveat(ledger: Ledger) -> None:
    statement = a_run(ledger, EARNEST, EARNEST).statement()
    assert statement.caveats == ()
    assert statement.epsilon == pytest.approx(a_plan().price.epsilon)


@pytest.mark.parametrize("sources", [(SEEDED, SEEDED), (SEEDED, EARNEST), (EARNEST, SEEDED)])
def test_one_seeded_round_marks_the_whole(ledger: Ledger, sources: tuple[Randomness, ...]) -> None:
    """Settings that are edited in the middle, from a seed to earnest, do not wash off what was charged before."""
    assert marked(a_run(ledger, *sources).statement())


def test_a_seeded_charge_of_another_run_marks_everything_on_the_ledger(ledger: Ledger) -> None:
    a_run(ledger, SEEDED, label="yesterday")
    assert marked(a_run(ledger, EARNEST, label="today").statement())


def test_who_asks_for_a_statement_makes_no_difference_to_it() -> None:
    """The charges say what they were: by a median, or by a server that some trusted."""
    median, fixed = plan_of(clip=MedianClip()), plan_of()
    ledger = ledger_for(median)
    run_of(median, ledger=ledger, label="a").round(0).release()
    for plan, label in ((fixed, "b"), (median, "a")):
        assert run_of(plan, ledger=ledger, label=label).statement().caveats.count(MEDIAN) == 1
    local, central = plan_of(noise_by="party"), plan_of(sampling=FixedSize, cohort=4)
    ledger = ledger_for(local)
    run_of(central, ledger=ledger, label="central").round(0).release()
    statement = run_of(local, ledger=ledger, label="local").statement()
    assert OTHER_TRUST.format(trust=CENTRAL_TRUST) in statement.caveats
    for plan in (fixed, local):  # the control: a ledger of one kind has nothing to add
        run = run_of(plan, randomness=EARNEST)
        run.round(0).release()
        assert len(run.statement().caveats) == 1  # it was kept in memory


def test_two_runs_on_one_ledger_state_what_both_cost(ledger: Ledger) -> None:
    first = a_run(ledger, EARNEST, EARNEST, label="first")
    alone = first.statement()
    second = a_run(ledger, EARNEST, EARNEST, label="second").statement()
    both = price(GaussianDpEvent(2.0 / 2.0), delta=BUDGET.delta, relation=ledger.relation).epsilon
    assert second.epsilon == pytest.approx(both)
    assert second.epsilon == first.statement().epsilon > alone.epsilon
    for statement in (second, first.statement()):
        assert any("also holds 2 charges of other runs" in caveat for caveat in statement.caveats)
    assert alone.caveats == ()


def test_a_round_is_not_repeated_under_another_seed(ledger: Ledger) -> None:
    """Two noises for one charge: their mean has less of it."""
    a_run(ledger, SEEDED, SEEDED)
    other = run_of(a_plan(), ledger=ledger, randomness=SeededRandomness(6))
    with pytest.raises(ConfigError, match="fresh noise would cost again"):
        other.round(0).release()
    again = run_of(a_plan(), ledger=ledger, randomness=SEEDED)
    assert again.round(1).release().round == 1
    assert ledger.charges() == (2, 2)


OF_TWENTY = Budget(epsilon=4.0, delta=1e-4)
THERE = 20
QUERY = MeanQuery(name="label", size=1, vector=lambda own: own.labels.float().mean()[None])


@pytest.fixture
def twenty(data: Clients) -> Clients:
    """Twenty clients of three examples each."""
    lists = [np.arange(3 * client, 3 * client + 3) for client in range(THERE)]
    return replace(data, partition=Partition.of(lists))


def planned_for(clients: int) -> Plan:
    poisson: dict[str, Any] = {"sampling": Poisson, "accountants": ("RDP",), "budget": OF_TWENTY}
    return plan_of(rounds=2, cohort=5, noise=3.0, members=clients, **poisson)


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
            averaged(planned_for(clients), twenty)
        with pytest.raises(ConfigError, match=f"clients = {clients}"):
            QUERY.ask(twenty, run_of(planned_for(clients), size=QUERY.width))
    whole = averaged(planned_for(THERE), twenty)
    assert whole.apply(whole.init())[0].round == 1
    control = _Unasked(whole.cohort.engine, run_of(planned_for(10), size=whole.cohort.size))
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


GIVEN: dict[str, Any] = {"clients": (100,), "deltas": (1e-3,), "accountant": "gdp", "sampling": "everyone"}


@pytest.mark.parametrize("cohorts", [{}, {"cohorts": (100,)}, {"shares": (1.0,)}])
def test_one_number_too_many_is_refused(cohorts: dict[str, Any]) -> None:
    settled = GIVEN | cohorts | {"rounds": (30,), "noise_multiplier": 9.0}
    with pytest.raises(ConfigError, match=r"epsilon = 1\.0: noise, rounds and cohort are given and decide it"):
        Comparison(**settled, epsilons=(1.0,))
    (plan,) = Comparison(**settled, epsilons=(None,)).plans()
    assert plan.price.epsilon > 1.0  # the control: what was ignored is not what it costs
    assert plan.budget.epsilon == plan.price.epsilon


AUDITED = Budget(epsilon=2.0, delta=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "clients", "witness"),
    [
        (less_noise_in_earnest, 60, "noise in earnest"),
        (one_client_each_round, 300, "draws of the client that is furthest off"),
    ],
    ids=["less noise where no seed repeats it", "a client beyond the canaries in every cohort"],
)
def test_doing_right_by_canaries_alone_is_seen(attack: Callable[[], Any], clients: int, witness: str) -> None:
    """All that canaries show is as it should be: the look beyond them is the only one that speaks."""
    config = PlanConfig(members=clients, schedule=constant(rounds=4, cohort=clients / 3), sampling=Poisson)
    with attack():
        found = audit_plan(config.calibrate(AUDITED), AUDITED, effort=Effort(repeats=8))
    assert [violation.partition(":")[0] for violation in found.violations] == [witness]
    control = audit_plan(config.calibrate(AUDITED), AUDITED, effort=Effort(repeats=8))
    assert control.violations == ()
