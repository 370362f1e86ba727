"""Receipts for tests: charges that cost next to nothing, on a ledger that nobody keeps."""

from typing import Any

from dp_accounting import GaussianDpEvent

from incrowd._random import Floats, Randomness, SeededRandomness
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import SEAL, Receipt
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.plan.plan import Plan

SEEDED = SeededRandomness(0)


def roomy(relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> Ledger:
    """A ledger with room for whatever a test does."""
    return Ledger.in_memory(budget=Budget(epsilon=1e6, delta=1e-6), relation=relation)


def paid(*noises: object, times: int = 1, randomness: Randomness = SEEDED) -> Receipt:
    """A receipt for these noises, each so many times, which a ledger would not give for so little."""
    charged = roomy().charge(GaussianDpEvent(1e6), randomness=randomness)
    pays_for = [(noise, times) for noise in noises]
    return Receipt(charged.entry, randomness=randomness, pays_for=pays_for, seal=SEAL)


def noised(
    noise: GaussianNoise, total: Floats, *at: Any, randomness: Randomness = SEEDED, contributions_bound: int = 1
) -> Floats:
    """A sum with noise on it, paid for once."""
    receipt = paid(noise, randomness=randomness)
    return noise.add(total, receipt=receipt, at=at or ("noise",), contributions_bound=contributions_bound).values


def spent_on(plan: Plan, *, randomness: Randomness = SEEDED, ledger: Ledger | None = None) -> Ledger:
    """A ledger on which all rounds of a plan are charged."""
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation) if ledger is None else ledger
    reserved = ledger.reserve(plan.runs, label="run").label
    for event, rounds in plan.runs:
        for _ in range(rounds):
            ledger.charge(event, reservation=reserved, randomness=randomness)
    return ledger
