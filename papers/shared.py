"""What the reproductions have in common: where their images come from, and what is stated of them."""

import hashlib
from pathlib import Path

import numpy as np

from incrowd import ConfigError, Ledger, Plan, SeededRandomness, Statement
from incrowd.data import Split, hold_out, load_mnist


def simulated_statement(plan: Plan) -> Statement:
    """What a ledger says that was kept in memory, holds all rounds of this plan, and nothing else."""
    source = SeededRandomness(0)
    with Ledger.in_memory(budget=plan.budget, relation=plan.relation) as ledger:
        reserved = ledger.reserve(plan.runs, label="run").label
        for event, rounds in plan.runs:
            for _ in range(rounds):
                ledger.charge(event, reservation=reserved, randomness=source)
        return plan.statement(ledger, own=plan.rounds)


_TEST_LABELS = "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"


def is_mnist(split: Split) -> bool:
    """Whether its test labels are MNIST's: what the papers report is of no other set in the same files."""
    labels = b"" if split.test is None else np.asarray(split.test.labels, np.uint8).tobytes()
    return hashlib.sha256(labels).hexdigest() == _TEST_LABELS


def load(folder: Path, *, held_out: int = 0) -> Split:
    """MNIST, or another set in its four files, from a folder or from mnist/ in it.

    With `held_out`, so many training examples come in place of the test examples.
    """
    inner = folder / "mnist"
    split = load_mnist(inner if inner.is_dir() else folder)
    if held_out == 0:
        return split
    if held_out >= len(split.train):
        raise ConfigError(field="held_out", value=held_out, remedy=f"give less than the {len(split.train)} examples")
    return hold_out(split.train, name=split.name, test_examples=held_out, randomness=SeededRandomness(0))
