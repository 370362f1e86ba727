"""Runs of a plan in memory, for whoever puts other pieces together or hands in what does not belong."""

from typing import Any

import numpy as np

from incrowd._random import Floats, Randomness, SeededRandomness
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, Step
from incrowd.privacy.release import PrivateRound, PrivateRun

CLIENTS = 8
HUGE = Budget(epsilon=1e9, delta=1e-6)
"""Room for noise so small that sums can be seen through it."""


def plan_of(*, rounds: int = 3, cohort: float = CLIENTS, noise: float = 1e-3, **parts: Any) -> Plan:
    """A plan with a thousandth of a bound's noise, unless it says otherwise."""
    schedule = Schedule((Step(rounds=rounds, cohort=cohort, noise_multiplier=noise),))
    given: dict[str, Any] = {"members": CLIENTS, "schedule": schedule, "sampling": Everyone} | parts
    budget = given.pop("budget", HUGE)
    return PlanConfig(**given).plan(budget)


def ledger_for(plan: Plan, budget: Budget | None = None) -> Ledger:
    return Ledger.in_memory(budget=budget or plan.budget, relation=plan.relation, data_identity="patients")


def run_of(
    plan: Plan,
    *,
    ledger: Ledger | None = None,
    randomness: Randomness | None = None,
    size: int = 1,
    label: str = "run",
    kind: type[PrivateRun] = PrivateRun,
) -> PrivateRun:
    """A run on a ledger of its own, under a seed, unless it says otherwise."""
    ledger, source = ledger or ledger_for(plan), randomness or SeededRandomness(1)
    return kind(plan, ledger=ledger, randomness=source, size=size, label=label)


def ones(count: int) -> Floats:
    return np.ones((count, 1))


def total(opened: PrivateRound) -> float:
    return float(opened.release().total.values[0])
