"""Attack: a server asks for one thing many times over, each time with fresh noise, and averages the noise away.

Counted per feature, each number costs epsilon on its own; twenty thousand numbers that all tell one label are no
protection of it. What repeats is priced as often as it is repeated, and a contribution as a whole has a limit.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Device, Policy, Specification
from incrowd.errors import SpecificationRefused
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger

EPSILON = 1.099
PER_FEATURE = Policy(unit="feature", epsilon=EPSILON, daily_epsilon=EPSILON, budget=Budget(epsilon=20.0, delta=1e-9))
BLIND = replace(PER_FEATURE, epsilon=1e9, daily_epsilon=1e9, budget=Budget(epsilon=1e9, delta=1e-9))
KEYS: dict[str, object] = {
    "name": "attack",
    "gamma": 1.0,
    "clip": 0.01,
    "epsilon": EPSILON,
    "privacy": "feature",
}
WIDE = {"type": "category", "levels": [f"{number}" for number in range(200)]}
ALWAYS_ONE = {"type": "number", "low": -1e9, "high": -1e8}


def phone(label: int, policy: Policy, seed: int) -> Device:
    ledger = Ledger.in_memory(budget=policy.budget, relation=Relation.REPLACE_ONE)
    row: dict[str, Any] = {"y": label, "x": 1.0, "z": 1.0, **{f"c{number}": 0.0 for number in range(40)}}
    return Device([row], ledger=ledger, policy=policy, randomness=SeededRandomness(seed=seed))


def crossed() -> Specification:
    """Columns whose range lies below every value, so that each feature is 1, crossed each with each."""
    fields = {"y": {"type": "boolean"}, **{f"c{number}": ALWAYS_ONE for number in range(40)}}
    return Specification.from_formula(f"y ~ ({' + '.join(list(fields)[1:])})^2", **{**KEYS, "fields": fields})


def seen_again() -> Specification:
    """One column in hundreds of fields."""
    fields: dict[str, object] = {"y": {"type": "boolean"}}
    fields |= {f"f{number}": {**ALWAYS_ONE, "column": "x"} for number in range(800)}
    return Specification.from_formula("y ~ .", **{**KEYS, "fields": fields})


def hidden() -> Specification:
    fields = {"y": {"type": "boolean"}, "x": {"type": "number", "low": 0, "high": 1}}
    return Specification.from_formula("y ~ x", **{**KEYS, "fields": fields, "hidden": [20_000]})


def label_of(device: Device, asked: Specification) -> int:
    """What the server reads: the mean of all numbers, over as many copies of one and the same noise-free number."""
    step = -device.answer(asked.to_json(), np.zeros(asked.size))
    return int(step.mean() < 0)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [crossed, seen_again])
def test_control_a_device_that_prices_each_number_alone_tells_its_label(ask: Any) -> None:
    right = sum(label_of(phone(label, BLIND, seed), ask()) == label for seed in range(10) for label in (0, 1))
    assert right >= 19


@pytest.mark.parametrize("ask", [crossed, seen_again, hidden])
def test_what_is_repeated_is_refused_before_anything_is_spent(ask: Any) -> None:
    own = phone(1, PER_FEATURE, 0)
    with pytest.raises(SpecificationRefused, match=r"a contribution would cost epsilon = .* per feature"):
        own.answer(ask().to_json(), np.zeros(ask().size))
    assert own.ledger.charges() == (0, 0)


def test_who_allows_the_repeats_still_has_a_limit_on_the_whole() -> None:
    """Single numbers, each of its own column: none is repeated, and the label is in all of them."""
    fields = {"y": {"type": "boolean"}, **{f"c{number}": ALWAYS_ONE for number in range(40)}}
    asked = Specification.from_formula("y ~ .", **{**KEYS, "fields": fields})
    assert asked.repeats == 1
    own = phone(1, PER_FEATURE, 0)
    with pytest.raises(SpecificationRefused, match=r"all 41 numbers .* would cost .* allows 10\.99"):
        own.answer(asked.to_json(), np.zeros(41))
    allowed = phone(1, replace(PER_FEATURE, whole_epsilon=50.0), 0)
    allowed.answer(asked.to_json(), np.zeros(41))
    assert allowed.spent_today() == pytest.approx(EPSILON)


@pytest.mark.parametrize(
    ("formula", "changes", "repeats"),
    [
        ("y ~ x", {}, 1),
        ("y ~ x + z", {}, 1),
        ("y ~ x * z", {}, 2),
        ("y ~ x * w", {}, 201),
        ("y ~ x * w - x - w", {}, 200),
        ("y ~ x + again", {}, 2),
        ("y ~ x * again", {}, 4),
        ("w ~ x", {"link": "multinomial"}, 200),
        ("y ~ x", {"hidden": [7]}, 22),
        ("y ~ 1", {}, 1),
    ],
)
def test_repeats_by_hand(formula: str, changes: dict[str, object], repeats: int) -> None:
    number = {"type": "number", "low": 0, "high": 1}
    fields = {"y": {"type": "boolean"}, "x": number, "z": number, "w": WIDE, "again": {**number, "column": "x"}}
    assert Specification.from_formula(formula, **{**KEYS, "fields": fields, **changes}).repeats == repeats
