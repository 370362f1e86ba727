"""Searches of a few small runs: what is compared, what it costs, that they go on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Schedule, Step, constant
from incrowd.privacy.statement import FORGOTTEN, SIMULATION
from incrowd.runs.folder import LEDGER, Summary, ranked
from incrowd.runs.sweep import ON_TEST, Cost, Search, Sweep, axis

BASE = (
    "features={name='none'}",
    "model={kind='linear'}",
    "data.clients=12",
    "privacy.rounds=2",
    "run.randomness=seeded",
    "run.seed=7",
)


def search(*axes: str, **wanted: Any) -> Search:
    overrides = (*BASE, *wanted.pop("overrides", ()))
    return Search(overrides=overrides, axes=[axis(text) for text in axes or ["server.learning_rate=2,16"]], **wanted)


def run(wanted: Search, folder: Path) -> Summary:
    return Sweep(search=wanted, out=folder / "search").run()


def spent(folder: Path) -> float:
    with Ledger.read(folder / "search" / LEDGER) as ledger:
        return ledger.spent().epsilon


@pytest.mark.slow
def test_a_grid_is_searched_and_every_run_charged(folder: Path) -> None:
    said: list[str] = []
    wanted = search("server.learning_rate=2,16", "privacy.rounds=1,2")
    found = Sweep(search=wanted, out=folder / "search", say=said.append).run()
    assert [row["settings"] for row in found["runs"]] == [
        {"server.learning_rate": rate, "privacy.rounds": rounds} for rate in (2, 16) for rounds in (1, 2)
    ]
    assert found["best"]["accuracy"] == max(row["accuracy"] for row in found["runs"])
    assert found["epsilon_of_search"] == pytest.approx(spent(folder))
    assert found["epsilon_of_search"] > 2 * found["runs"][0]["epsilon"]
    assert found["validation_set"].startswith("297 examples, public")
    assert any("flattering" in caveat for caveat in found["statement"]["caveats"])
    assert found["statement"]["epsilon"] == found["epsilon_of_search"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert len(said) == 5
    assert said[-1].startswith("run ")


class Stop(Exception):
    pass


def stopping(after: int) -> Callable[[str], None]:
    """Something to tell lines that stops the search after so many finished runs."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == after + 1:
            raise Stop

    return say


@pytest.mark.slow
def test_a_search_that_was_cut_off_goes_on_and_repeats_no_run(folder: Path) -> None:
    wanted = search("server.learning_rate=2,4,8")
    whole = run(wanted, folder / "whole")
    with pytest.raises(Stop):
        Sweep(search=wanted, out=folder / "search", say=stopping(1)).run()
    first = folder / "search/runs/0000/model.safetensors"
    before = first.stat().st_mtime_ns
    assert spent(folder) == pytest.approx(whole["runs"][0]["epsilon"])
    found = run(wanted, folder)
    assert first.stat().st_mtime_ns == before
    assert spent(folder) == pytest.approx(whole["epsilon_of_search"])
    for ours, theirs in zip(found["runs"], whole["runs"], strict=True):
        assert (ours["accuracy"], ours["loss"]) == (theirs["accuracy"], theirs["loss"])


def test_a_run_that_was_paid_for_and_is_gone_is_not_trained_again(folder: Path) -> None:
    with pytest.raises(Stop):
        Sweep(search=search(), out=folder / "search", say=stopping(1)).run()
    shutil.rmtree(folder / "search/runs/0000")
    with pytest.raises(DataError, match="paid for"):
        run(search(), folder)
    for name in (LEDGER, f"{LEDGER}.witness"):
        (folder / "search" / name).unlink()
    with pytest.raises(IncrowdError):  # nor does it help to take the ledger away
        run(search(), folder)


def test_simulated_runs_have_seeds_of_their_own() -> None:
    seeded = search("local.epochs=1,2")
    assert len({7, *(seeded.config(run).run.seed for run in (0, 1))}) == 3
    assert [search("run.seed=3,4").config(run).run.seed for run in (0, 1)] == [3, 4]


def test_a_grid_has_every_combination_and_a_random_search_some() -> None:
    axes = ("local.epochs=1,5", "server.kind=sgd,adam")
    every = [each.settings for each in search(*axes).candidates]
    assert every == [{"local.epochs": epochs, "server.kind": kind} for epochs in (1, 5) for kind in ("sgd", "adam")]
    some = [[each.settings for each in search(*axes, random=2, seed=seed).candidates] for seed in range(8)]
    assert all(len(few) == 2 and few[0] in every and few[1] in every and few[0] != few[1] for few in some)
    assert any(few != some[0] for few in some)
    assert len(search(*axes, random=9).candidates) == 4
    tables = search("server.learning_rate=2,4", "model={kind='mlp', hidden=[8]},{kind='linear'}").candidates
    assert [each.config.server.learning_rate for each in tables] == [2, 2, 4, 4]
    assert tables[0].settings["model"] == {"init_scale": 1.0, "kind": "mlp", "hidden": [8], "bias": True}


DELTA = 1e-4


def plan(rounds: int = 4, *, delta: float = DELTA) -> Plan:
    config = PlanConfig(members=50, schedule=constant(rounds=rounds, cohort=50), sampling=Everyone)
    return config.calibrate(Budget(epsilon=2.0, delta=delta))


def fixed_size(cohort: float) -> Plan:
    """With noise as it is, which need not be searched for."""
    schedule = Schedule((Step(rounds=2, cohort=cohort, noise_multiplier=2.0),))
    config = PlanConfig(members=50, schedule=schedule, sampling=FixedSize)
    return config.plan(Budget(epsilon=20.0, delta=DELTA))


def test_all_runs_are_priced_together_under_the_least_delta_and_one_relation() -> None:
    found = Cost(plans=[plan(4), plan(9)])
    assert 2.5 < found.price.epsilon < 4.0
    assert found.price.accountant == "GDP"  # Gaussian releases about everyone
    assert Cost(plans=[plan(delta=1e-4), plan(delta=1e-5)]).delta == 1e-5
    fixed = fixed_size(10), fixed_size(20)
    with pytest.raises(ConfigError, match="search each sampling for itself"):
        Cost(plans=[plan(), fixed[0]])
    assert Cost(plans=fixed).relation is Relation.REPLACE_ONE
    assert Cost(plans=fixed).price.epsilon > max(each.price.epsilon for each in fixed)
    assert found.budget(None) == Budget(epsilon=found.price.epsilon, delta=DELTA)
    assert found.budget(9.0) == Budget(epsilon=9.0, delta=DELTA)
    with pytest.raises(BudgetExceeded, match="search less"):
        found.budget(2.5)


def test_the_statement_is_of_the_search_and_leaves_no_caution_out() -> None:
    plans = [plan(4), plan(9)]
    whole = Cost(plans=plans)
    ledger = Ledger.in_memory(budget=Budget(epsilon=100.0, delta=DELTA), relation=whole.relation)
    for number, one in enumerate(plans):
        ledger.charge(one.event, randomness=SeededRandomness(0) if number else SystemRandomness())
    for on_test, caveats in ((False, (SIMULATION, FORGOTTEN)), (True, (SIMULATION, FORGOTTEN, ON_TEST))):
        shown = whole.statement(ledger, own=2, on_test=on_test)
        assert shown.epsilon == pytest.approx(whole.price.epsilon)
        assert shown.caveats == caveats
        assert "every run, of 2 settings" in shown.sampler
        assert set(plans[0].statement(ledger, own=2).assumed) < set(shown.assumed)


def test_the_best_is_the_most_accurate_and_then_of_the_least_loss() -> None:
    results = [(0.5, 1.0), (0.9, 2.0), (0.9, None), (0.9, 1.0), (None, 2.0), (None, None)]
    rows: list[Summary] = [{"accuracy": accuracy, "loss": loss} for accuracy, loss in results]
    assert ranked(rows) == [rows[place] for place in (3, 1, 2, 0, 4, 5)]
