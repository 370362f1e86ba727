"""A statement is what the ledger says, not what somebody hands it: seeds, other runs and forgetful ledgers show."""

from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, Step
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import SIMULATION, Statement

pytestmark = pytest.mark.watched

BUDGET = Budget(epsilon=50.0, delta=1e-6)
EARNEST, SEEDED = SystemRandomness(), SeededRandomness(5)


def a_plan(rounds: int = 2) -> Plan:
    step = Step(rounds=rounds, cohort=4, noise_multiplier=2.0)
    clip = FixedClip(clip_norm=1.0)
    return PlanConfig(members=4, schedule=Schedule((step,)), sampling=Everyone, clip=clip).plan(BUDGET)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger", budget=BUDGET, relation=a_plan().relation, data_identity="patients")


def a_run(ledger: Ledger, *sources: Randomness, label: str = "run") -> PrivateRun:
    """A run whose rounds have these sources of randomness, one after the other."""
    runs = [
        PrivateRun(a_plan(len(sources)), ledger=ledger, randomness=source, size=1, label=label) for source in sources
    ]
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
    other = PrivateRun(a_plan(), ledger=ledger, randomness=SeededRandomness(6), size=1)
    with pytest.raises(ConfigError, match="fresh noise would cost again"):
        other.round(0).release()
    again = PrivateRun(a_plan(), ledger=ledger, randomness=SEEDED, size=1)
    assert again.round(1).release().round == 1
    assert ledger.charges() == (2, 2)
