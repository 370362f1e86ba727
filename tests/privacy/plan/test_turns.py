import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import inverse
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning
from incrowd.privacy.plan.sampling import Cyclic, Everyone, constant, listed
from incrowd.privacy.release import Carry, PrivateRun
from tests.privacy.receipts import spent_on

BUDGET = Budget(epsilon=2.0, delta=1e-5)


def a_plan(budget: Budget = BUDGET, **changes: Any) -> Plan:
    return PlanConfig.in_turns(**{"clients": 60, "rounds": 12, "groups": 6} | changes).calibrate(budget)


def a_run(plan: Plan, *, size: int, ledger: Ledger | None = None) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation) if ledger is None else ledger
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(4), size=size)


def released_means(run: PrivateRun) -> np.ndarray:
    carry, means = run.start(), []
    for number in range(run.plan.rounds):
        asked = run.round(number, carry=carry)
        means.append(asked.release().mean)
        carry = asked.after
    return np.array(means)


def test_the_whole_run_is_one_event_and_costs_the_budget() -> None:
    plan = a_plan()
    assert 2.0 * (1 - 1e-3) < plan.price.epsilon <= 2.0
    assert plan.round(0).event == GaussianDpEvent(plan.noise_multiplier)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    run = a_run(plan, size=2, ledger=ledger)
    spent = []
    carry = run.start()
    for number in range(12):
        asked = run.round(number, carry=carry)
        asked.release()
        carry = asked.after
        spent.append(ledger.spent().epsilon)
    assert spent == [spent[0]] * 12
    assert spent[0] == pytest.approx(plan.price.epsilon)


def test_running_sums_are_better_than_with_independent_noise() -> None:
    """The same clients, rounds and budget; in each round only a sixth of the clients takes part, nothing is sampled."""
    size, rounds, groups = 4000, 24, 6
    plan = a_plan(rounds=rounds, groups=groups)
    error = math.sqrt(np.mean(np.cumsum(released_means(a_run(plan, size=size)) * 10, axis=0) ** 2))
    participations = rounds // groups
    independent = PlanConfig(members=60, schedule=constant(rounds=participations, cohort=60), sampling=Everyone)
    sigma = independent.calibrate(BUDGET).noise_multiplier  # what covers a client's four participations
    alone = sigma * math.sqrt((rounds + 1) / 2)  # the typical error of running sums of independent noise
    assert plan.correlated is not None
    effect = np.cumsum(inverse(plan.correlated.strategy.column(rounds)))  # of a round's fresh noise on later sums
    squares = np.arange(rounds, 0, -1) @ effect**2 / rounds
    stated = plan.noise_multiplier * plan.correlated.sensitivity * math.sqrt(squares)
    assert error == pytest.approx(stated, rel=0.1)
    assert alone / error > 1.4


def test_a_run_without_its_memory_is_refused() -> None:
    run = a_run(a_plan(), size=2)
    first = run.round(0)
    first.release()
    for stale in (run.start(), Carry(clip=NormalisedClip())):
        with pytest.raises(ConfigError, match="hand every round the carry of the release before it"):
            run.round(1, carry=stale).release()
    assert first.after.noise is not None
    assert first.after.noise.round == 1


def test_the_statement_says_that_nothing_is_sampled() -> None:
    statement = a_plan().statement(spent_on(a_plan()), own=12)
    assert statement.sampler == "none: 60 clients take turns in 6 groups over 12 rounds"
    assert any(caveat.startswith("SIMULATION") for caveat in statement.caveats)
    assert statement.epsilon <= 2.0


def test_impossible_plans_are_refused() -> None:
    for clip in (MedianClip(), QuantileClip(clip_norm=1.0, bit_noise=9.0)):
        with pytest.raises(ConfigError, match="correlated noise belongs to one bound"):
            a_plan(clip=clip)
    for changes in ({"rounds": 0}, {"clients": 0}, {"groups": 0}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            a_plan(BUDGET, **changes)
    for outside in (-1, 12):
        with pytest.raises(ConfigError, match="give a round from 0 to 11"):
            a_plan().round(outside)
    with pytest.raises(ConfigError, match="groups have one size"):
        PlanConfig(members=60, schedule=listed(cohorts=[10, 20]), sampling=Cyclic)
    for cohort in (7, 59, 0.5, 61, 1e-300):
        with pytest.raises(ConfigError, match="clients take turns in whole groups: give 60 divided by"):
            PlanConfig(members=60, schedule=constant(rounds=4, cohort=cohort), sampling=Cyclic)
    with pytest.warns(PrivacyWarning, match="at least 1/60"):
        a_plan(budget=Budget(epsilon=2.0, delta=0.05))


def test_after_the_last_round_nothing_is_remembered() -> None:
    run = a_run(a_plan(rounds=2, groups=2), size=2)
    first = run.round(0)
    first.release()
    last = run.round(1, carry=first.after)
    last.release()
    assert first.after.noise is not None
    assert last.after.noise is None
