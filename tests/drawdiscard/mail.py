"""A small specification, examples of it, and devices in memory: for tests of whole contributions."""

from pathlib import Path
from typing import Any

from incrowd import Device, Specification
from incrowd.drawdiscard import Policy
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger

FIELDS: dict[str, object] = {
    "opened": {"type": "boolean"},
    "sender": {"type": "category", "levels": ["friend", "shop"]},
    "words": {"type": "integer", "low": 0, "high": 500},
}
KEYS: dict[str, object] = {"name": "mail", "fields": FIELDS, "gamma": 0.05, "clip": 0.2, "epsilon": 2.0, "instances": 4}
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
