"""The six fields of the paper's model with known weights, and tables of them."""

from typing import Any

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.specification import Specification

FORMULA = "O ~ (B + E1 + E2 + D + I) ** 2"
FIELDS: dict[str, object] = {
    "O": {"type": "boolean"},
    "B": {"type": "boolean"},
    "E1": {"type": "category", "levels": ["A", "B", "C"], "baseline": "C"},
    "E2": {"type": "category", "levels": ["a", "b", "c", "d"], "baseline": "d"},
    "D": {"type": "number", "low": 0.0, "high": 3.0},
    "I": {"type": "integer", "low": 0, "high": 5},
}
KEYS: dict[str, object] = {
    "name": "known weights",
    "fields": FIELDS,
    "link": "logistic",
    "gamma": 0.005,
    "clip": 1.0,
    "epsilon": 2.0,
    "noise": "laplace",
    "instances": 30,
}
COLUMNS: dict[str, Any] = {"O": "INTEGER", "B": "INTEGER", "E1": "TEXT", "E2": "TEXT", "D": "REAL", "I": "INTEGER"}
"""What a device's table has: made long before anyone thought of a model."""


def specification(**changes: object) -> Specification:
    return Specification.from_formula(FORMULA, **{**KEYS, **changes})


def rows(count: int, *, seed: int = 1) -> list[dict[str, Any]]:
    bits = SeededRandomness(seed=seed).stream("rows").bits(6 * count).reshape(count, 6)
    return [
        {
            "O": int(o % 2),
            "B": int(b % 2),
            "E1": "ABC"[e1 % 3],
            "E2": "abcd"[e2 % 4],
            "D": float(d % 300) / 100,
            "I": int(i % 6),
        }
        for o, b, e1, e2, d, i in bits.tolist()
    ]


def table(count: int, *, seed: int = 1) -> dict[str, list[Any]]:
    """The same, a list a column."""
    found = rows(count, seed=seed)
    return {name: [row[name] for row in found] for name in COLUMNS}
