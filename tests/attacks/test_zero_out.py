"""Attack: who is removed from a numbered list moves everybody behind them, and the noise hides one client only."""

from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.errors import LedgerMismatch
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Everyone, Poisson, Sampler, Schedule, Step
from incrowd.privacy.release import PrivateRun
from incrowd.runs.ledgers import relation_of
from incrowd.runs.work import assemble
from tests.runs.small import small

BUDGET = Budget(epsilon=8.0, delta=1e-5)
CLIENTS, GROUPS = 12, 3
VALUES = np.array([1.0, -1.0, 0.0] * 4)
"""The contributions of twelve clients with a clip bound of 1: a group's members agree, and the groups do not."""


def sums(sampler: Sampler, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of as many rounds as there are groups, before noise."""
    stream = SeededRandomness(0).stream("cohort")
    return np.array([values[sampler.sample(stream, round=number)].sum() for number in range(GROUPS)])


@dataclass(frozen=True)
class Renumbered:
    """The broken twin: the relation that it would have to hide, with one client fewer in the list."""

    clients: int

    def moved(self) -> float:
        with_all = sums(Cyclic(clients=self.clients, groups=GROUPS), VALUES)
        without = sums(Cyclic(clients=self.clients - 1, groups=GROUPS), VALUES[1:])
        return float(np.linalg.norm(with_all - without))


def test_a_removed_client_shifts_the_groups_and_an_empty_place_does_not() -> None:
    for client in range(CLIENTS):
        emptied = VALUES.copy()
        emptied[client] = 0
        turns = Cyclic(clients=CLIENTS, groups=GROUPS)
        assert np.linalg.norm(sums(turns, VALUES) - sums(turns, emptied)) <= 1
    assert Renumbered(CLIENTS).moved() > 5


def everyone() -> Plan:
    return PlanConfig(
        members=CLIENTS, schedule=Schedule((Step(rounds=2, cohort=CLIENTS),)), sampling=Everyone
    ).calibrate(BUDGET)


@pytest.mark.filterwarnings("ignore:delta")
def test_who_counts_clients_promises_no_more_than_an_empty_place() -> None:
    correlated = PlanConfig.in_turns(clients=CLIENTS, rounds=4, groups=GROUPS).calibrate(BUDGET)
    for plan in (everyone(), correlated):
        assert plan.relation is plan.round(0).sampler.relation is Relation.REPLACE_SPECIAL
        run = PrivateRun(
            plan,
            ledger=Ledger.in_memory(budget=BUDGET, relation=plan.relation),
            randomness=SeededRandomness(0),
            size=2,
        )
        said = " ".join(run.statement().text().split())
        assert "(zero out one client)" in said
        assert "whether one client contributed or left its place empty (how many there are is public)" in said
        with pytest.raises(LedgerMismatch):
            PrivateRun(
                plan,
                ledger=Ledger.in_memory(budget=BUDGET, relation=Relation.ADD_OR_REMOVE_ONE),
                randomness=SeededRandomness(0),
                size=2,
            )
    assert Poisson(clients=CLIENTS, cohort=3).relation is Relation.ADD_OR_REMOVE_ONE  # coins are nobody else's


def test_an_empty_place_costs_what_adding_or_removing_does() -> None:
    event = GaussianDpEvent(1.3)
    for accountants in (("GDP",), ("PLD",), ("RDP",)):
        costs = {
            price(event, delta=1e-5, relation=relation, accountants=accountants).epsilon
            for relation in (Relation.REPLACE_SPECIAL, Relation.ADD_OR_REMOVE_ONE)
        }
        assert len(costs) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "relation"),
    [
        ((), Relation.REPLACE_SPECIAL),
        (("privacy.noise=correlated", "privacy.groups=3"), Relation.REPLACE_SPECIAL),
        (("privacy.sampling=poisson", "privacy.cohort=4"), Relation.ADD_OR_REMOVE_ONE),
        (("privacy.sampling=fixed", "privacy.cohort=4"), Relation.REPLACE_ONE),
        (("privacy.noise_by=party",), Relation.REPLACE_ONE),
    ],
)
def test_a_ledger_that_settings_begin_is_one_that_their_run_takes(words: tuple[str, ...], relation: Relation) -> None:
    config = small("privacy.epsilon=50", *words)
    assert relation_of(config) is assemble(config).plan.relation is relation
