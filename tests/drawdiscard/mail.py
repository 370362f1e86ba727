"""A small specification, examples of it, and devices in memory: for tests of whole contributions."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from incrowd import Device, SeededRandomness, Server, Specification
from incrowd.drawdiscard import Policy
from incrowd.drawdiscard.kept_pool import FILE
from incrowd.drawdiscard.pool import Instance
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger

FIELDS: dict[str, object] = {
    "opened": {"type": "boolean"},
    "sender": {"type": "category", "levels": ["friend", "shop"]},
    "words": {"type": "integer", "low": 0, "high": 500},
}
KEYS: dict[str, object] = {"name": "mail", "fields": FIELDS, "gamma": 0.05, "clip": 0.2, "epsilon": 2.0}
KEYS |= {"instances": 4, "noise": "laplace"}
LOOSE = Policy(epsilon=1e4, daily_epsilon=1e6, budget=Budget(epsilon=1e6, delta=1e-9))


def asked(**changes: object) -> Specification:
    return Specification.from_formula("opened ~ sender + words", **{**KEYS, **changes})


def mails(count: int = 20, *, first: int = 0) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"opened": n % 2, "sender": ["friend", "shop"][n % 2], "words": 37 * n % 500} for n in numbers]


def phone(*, policy: Policy = LOOSE, first: int = 0) -> Device:
    """Its ledger is in memory: for what need not survive."""
    ledger = Ledger.in_memory(budget=policy.budget, relation=Relation.REPLACE_ONE)
    return Device(mails(first=first), ledger=ledger, policy=policy)


def charges(ledger: Path | Ledger) -> int:
    if isinstance(ledger, Ledger):
        return ledger.charges()[0]
    with Ledger.read(ledger) as opened:
        return opened.charges()[0]


def noised(stated: Specification, row: Instance, gamma: float, *, seed: int) -> Instance:
    """What an honest device without examples answers to an instance: noise alone."""
    noise = SeededRandomness(seed=seed).stream("noise").laplaces(row.size)
    return (row - gamma * stated.mechanism.noise_scale * noise).astype(np.float32)


def honest(server: Server, seed: int = 1) -> tuple[Instance, bytes]:
    """An answer of noise alone, and its ticket."""
    drawn = server.draw()
    return noised(server.specification, drawn.weights, drawn.gamma, seed=seed), drawn.ticket


def held(server: Server) -> list[object]:
    """All that a server's pool is, to be compared with another's."""
    kept = server._held.snapshot()
    pool = kept.pool
    rows = [row.tobytes() for row in (*pool.rows, *pool.replaced.values())]
    counts = [pool.versions, list(pool.replaced), pool.draws, pool.discards]
    return [rows, counts, kept.taken, {name: array.tobytes() for name, array in kept.test.items()}]


def waiting(folder: Path) -> int:
    """How many answers of devices in this folder wait to be sent."""
    return len(list(folder.glob("*.outbox-*")))


def on_disk(folder: Path) -> int:
    """How many answers are in the pool of a folder, whoever has it open."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        (told,) = database.execute("SELECT content FROM state WHERE name = 'pool'").fetchone()
    accepted: int = json.loads(told)["counts"][1]
    return accepted
