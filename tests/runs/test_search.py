import json
import math
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
from incrowd.runs.folder import Summary
from incrowd.runs.search import HASTE, ON_TEST, Cost, Search, axis, best_of, ranked

BASE = ("model={kind='linear'}", "features={name='none'}", "data.clients=12", "privacy.rounds=2")


def search(*axes: str, **wanted: Any) -> Search:
    return Search(overrides=BASE, axes=[axis(text) for text in axes or ["local.epochs=2"]], **wanted)


def test_every_point_is_a_whole_config() -> None:
    found = search("server.learning_rate=2,4", "model={kind='mlp', hidden=[8]},{kind='linear'}").candidates
    assert len(found) == 4
    assert [each.config.server.learning_rate for each in found] == [2, 2, 4, 4]
    assert found[0].settings == {
        "server.learning_rate": 2.0,
        "model": {"init_scale": 1.0, "kind": "mlp", "hidden": [8], "bias": True},
    }
    for each in found:
        assert not each.config.run.plot
        assert each.config.privacy.rounds == 2


def test_simulated_runs_have_seeds_of_their_own() -> None:
    seeded = Search(overrides=(*BASE, "run.randomness=seeded", "run.seed=7"), axes=[axis("local.epochs=1,2")])
    seeds = [seeded.config(0, run=run).run.seed for run in (0, 1)]
    assert seeds[0] != seeds[1]
    assert seeds[0] == seeded.config(1, run=0).run.seed  # by the run, whatever its settings are
    assert 7 not in seeds
    asked = Search(overrides=(*BASE, "run.randomness=seeded"), axes=[axis("run.seed=3,4")])
    assert [asked.config(place, run=place).run.seed for place in (0, 1)] == [3, 4]
    assert search().config(0, run=5).run.seed is None


def test_what_a_search_is_survives_json_and_tells_searches_apart() -> None:
    first = search("local.epochs=1,2", select="private", repetitions=Repetitions(mean=2.0, shape=math.inf))
    assert json.loads(json.dumps(first.to_json(), allow_nan=False)) == first.to_json()
    assert first.to_json() != search("local.epochs=1,2").to_json()
    assert search("local.epochs=1,2").to_json() != search("local.epochs=1,3").to_json()
    assert search("local.epochs=1,2").to_json() != search("local.epochs=1,2", budget=9.0).to_json()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"select": "best"}, "select"),
        ({"select": "private"}, "expected_runs"),
        ({"repetitions": Repetitions(mean=2.0)}, "expected_runs"),
        ({"budget": 0.0}, "budget"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_searches_are_refused_by_name(wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        search("local.epochs=1,2", **wanted)
    assert refused.value.field == field


def test_a_point_that_is_no_config_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"local\.epoch\b"):
        _ = search("local.epoch=1,2").candidates
    with pytest.raises(ConfigError, match=r"local\.epochs"):
        _ = search("local.epochs=1,many").candidates


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
    return Cost(plans=plans, **wanted)


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
    found = cost(*plans, repetitions=law)
    ((event, count),) = found.events
    assert (event, count) == (law.event([each.event for each in plans]), 1)
    assert plans[0].price.epsilon < found.price.epsilon < epsilon(*[plans[0].event] * 6)
    # A law over the dearest alone costs no more than one over both.
    dearest = cost(plans[0], repetitions=law).price.epsilon
    assert found.price.epsilon >= dearest
    assert found.holds()["selected"].endswith("differentially private")
    assert "must stay secret" in found.holds()["shown"]


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
    selected = cost(*plans, repetitions=law).statement(ledger, own=2, on_test=True)
    assert selected.caveats == (SIMULATION, FORGOTTEN, ON_TEST)
    assert HASTE in selected.not_covered
    assert "random number" in selected.sampler
    assert MEDIAN not in selected.caveats


def row(accuracy: float | None, loss: float | None, **settings: Any) -> Summary:
    return {
        "settings": settings or {"rate": 1.0},
        "accuracy": accuracy,
        "loss": loss,
        "epsilon": 1.0,
        "rounds": 2,
        "seconds": 0.5,
        "run": "here",
    }


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([], None),
        ([row(0.5, 1.0), row(0.9, 2.0), row(0.6, 0.1)], 1),
        ([row(0.9, 2.0), row(0.9, 1.0)], 1),
        ([row(0.9, 1.0), row(0.9, 1.0)], 0),
        ([row(0.9, None), row(0.9, 99.0)], 1),
        ([row(None, 2.0), row(None, None), row(None, 1.0)], 2),
        ([row(0.1, None)], 0),
    ],
)
def test_the_best_is_found(rows: list[Summary], best: int | None) -> None:
    assert best_of(rows) == best
    if best is not None:
        assert ranked(rows)[0] is rows[best]


def test_a_grid_has_every_combination_and_a_random_search_some() -> None:
    axes = ("local.epochs=1,5", "server.kind=sgd,adam")
    every = [each.settings for each in search(*axes).candidates]
    assert every == [{"local.epochs": epochs, "server.kind": kind} for epochs in (1, 5) for kind in ("sgd", "adam")]
    some = [[each.settings for each in search(*axes, random=2, seed=seed).candidates] for seed in range(8)]
    assert all(len(few) == 2 and few[0] in every and few[1] in every and few[0] != few[1] for few in some)
    assert any(few != some[0] for few in some)
    assert len(search(*axes, random=9).candidates) == 4


@pytest.mark.parametrize("text", ["local.epochs", "=1", "local.epochs=", "local.epochs=1,", "local.epochs=1,1"])
def test_no_axis_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        axis(text)
    with pytest.raises(ConfigError, match="twice"):
        search("local.epochs=1", "local.epochs=2")
