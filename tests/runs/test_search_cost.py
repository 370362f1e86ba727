from typing import Any

import pytest
from dp_accounting import DpEvent

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.account.selection import Repetitions
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Schedule, Step, constant
from incrowd.privacy.statement import FORGOTTEN, MEDIAN, SIMULATION
from incrowd.runs.search import HASTE, ON_TEST, PUBLIC, Cost

DELTA = 1e-4


def plan(rounds: int = 4, *, epsilon: float = 2.0, delta: float = DELTA) -> Plan:
    config = PlanConfig(members=50, schedule=constant(rounds=rounds, cohort=50), sampling=Everyone)
    return config.calibrate(Budget(epsilon=epsilon, delta=delta))


def fixed_size(cohort: float) -> Plan:
    """With noise as it is, which need not be searched for."""
    schedule = Schedule((Step(rounds=2, cohort=cohort, noise_multiplier=2.0),))
    config = PlanConfig(members=50, schedule=schedule, sampling=FixedSize)
    return config.plan(Budget(epsilon=20.0, delta=DELTA))


def cost(*plans: Plan, **wanted: Any) -> Cost:
    return Cost(plans=plans, **{"select": "all"} | wanted)


def epsilon(*events: DpEvent) -> float:
    return price(compose([(event, 1) for event in events]), delta=DELTA, relation=Relation.ADD_OR_REMOVE_ONE).epsilon


def test_all_runs_that_are_shown_are_charged() -> None:
    plans = [plan(4), plan(9), plan(4, epsilon=1.0)]
    found = cost(*plans)
    assert [event for event, _ in found.events] == [compose(each.runs) for each in plans]
    assert found.price.epsilon == pytest.approx(epsilon(*(each.event for each in plans)))
    # Gaussian releases about everyone: the sum of the squares of 1/z, and so the exact figure.
    assert found.price.epsilon > 2.0
    assert found.price.accountant == "GDP"


def test_the_selection_is_one_event_over_all_settings() -> None:
    plans, law = [plan(4), plan(9, epsilon=1.0)], Repetitions(mean=6.0)
    found = cost(*plans, select="private", repetitions=law)
    ((event, count),) = found.events
    assert (event, count) == (law.event([each.event for each in plans]), 1)
    assert plans[0].price.epsilon < found.price.epsilon < epsilon(*[plans[0].event] * 6)
    # A law over the dearest alone costs no more than one over both.
    dearest = cost(plans[0], select="private", repetitions=law).price.epsilon
    assert found.price.epsilon >= dearest
    assert found.holds()["selected"].endswith("differentially private")
    assert "must stay secret" in found.holds()["shown"]


def test_nothing_is_charged_for_public_examples_and_what_it_would_cost_is_said() -> None:
    found = cost(plan(4), plan(9), select="public")
    assert found.events == []
    assert found.price.epsilon == 0
    assert found.prices["every_candidate"] == pytest.approx(cost(plan(4), plan(9)).price.epsilon)
    assert PUBLIC in found.holds()["selected"]


def test_the_search_s_delta_is_the_least_and_its_relation_is_one() -> None:
    assert cost(plan(delta=1e-4), plan(delta=1e-5)).delta == 1e-5
    fixed = fixed_size(10), fixed_size(20)
    with pytest.raises(ConfigError, match="search each sampling for itself"):
        cost(plan(), fixed[0])
    assert cost(*fixed).relation is Relation.REPLACE_ONE
    assert cost(*fixed).price.epsilon > max(each.price.epsilon for each in fixed)


def test_a_budget_is_kept_or_the_search_refused() -> None:
    found = cost(plan(4), plan(9))
    assert found.budget(None) == Budget(epsilon=found.price.epsilon, delta=DELTA)
    assert found.budget(9.0) == Budget(epsilon=9.0, delta=DELTA)
    with pytest.raises(BudgetExceeded, match="search less"):
        found.budget(2.5)


def test_the_statement_is_of_the_search_and_leaves_no_caution_out() -> None:
    plans = [plan(4), plan(9)]
    whole = cost(*plans)
    ledger = Ledger.in_memory(budget=Budget(epsilon=100.0, delta=DELTA), relation=whole.relation)
    for number, (event, _) in enumerate(whole.events):
        ledger.charge(event, randomness=SeededRandomness(0) if number else SystemRandomness())
    shown = whole.statement(ledger, own=2, on_test=False)
    assert shown.epsilon == pytest.approx(whole.price.epsilon)
    assert shown.caveats == (SIMULATION, FORGOTTEN)
    assert "every run, of 2 settings" in shown.sampler
    assert set(plans[0].statement(ledger, own=2).assumed) < set(shown.assumed)
    assert HASTE not in shown.not_covered
    law = Repetitions(mean=3.0)
    selected = cost(*plans, select="private", repetitions=law).statement(ledger, own=2, on_test=True)
    assert selected.caveats == (SIMULATION, FORGOTTEN, ON_TEST)
    assert HASTE in selected.not_covered
    assert "random number" in selected.sampler
    assert MEDIAN not in selected.caveats
