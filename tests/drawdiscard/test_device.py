import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Device, Policy
from incrowd.drawdiscard.device import NoExamplesWarning
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import BudgetExceeded, LedgerMismatch, SpecificationRefused
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from tests.drawdiscard.known_weights import COLUMNS, FIELDS, KEYS, rows, specification
from tests.statistics import ks, rejects_wrong_scale

BUDGET = Budget(epsilon=10.0, delta=1e-6)
POLICY = Policy(epsilon=2.0, daily_epsilon=4.0, budget=BUDGET)
FIRST_DAY = date(2026, 3, 1)


Table = list[dict[str, Any]]


@pytest.fixture
def table() -> Table:
    return rows(8)


def device(
    table: Table,
    *,
    policy: Policy = POLICY,
    day: date = FIRST_DAY,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> Device:
    ledger = ledger or Ledger.in_memory(budget=policy.budget, relation=Relation.REPLACE_ONE)
    randomness = None if seed is None else SeededRandomness(seed=seed)
    return Device(table, ledger=ledger, policy=policy, randomness=randomness, today=lambda: day)


def on(day: date, own: Device) -> Device:
    """The same device on another day."""
    return device(rows(8), policy=own.policy, day=day, ledger=own.ledger)


def charges(of: Device) -> int:
    return sum(entry.kind == "charge" for entry in of.ledger.entries())


def asked_for(**changes: object) -> Specification:
    return specification(**changes)


def test_the_update_is_a_noised_gradient_step(table: Table) -> None:
    """With next to no noise the step can be compared with one by hand."""
    asked = asked_for(epsilon=1e6, privacy="feature", examples=100)
    loose = replace(POLICY, epsilon=1e9, daily_epsilon=1e9, budget=Budget(epsilon=1e9, delta=1e-6), unit="feature")
    weights = SeededRandomness(seed=1).stream("weights").normals(33)
    updated = device(table, policy=loose).answer(asked.to_json(), weights)
    found = rows(8)
    features, responses = asked.encode({name: [row[name] for row in found] for name in COLUMNS})
    expected = weights - 0.005 * asked.model.gradient(weights, features, responses)
    np.testing.assert_allclose(updated, expected, atol=0.005 * 1e-4)
    assert np.abs(updated - weights).max() > 1e-5


def test_the_noise_is_that_of_the_specification() -> None:
    levels = [f"level {number}" for number in range(6000)]
    fields = {"y": {"type": "boolean"}, "x": {"type": "category", "levels": levels}}
    asked = Specification.from_formula("y ~ x", **{**KEYS, "fields": fields, "bound": "norm", "clip": 0.5})
    with pytest.warns(NoExamplesWarning):
        updated = device([{"y": None, "x": None}]).answer(asked.to_json(), np.zeros(6001))
    assert rejects_wrong_scale(ks("laplace", scale=0.005 * 2 * 0.5 / 2.0), updated.astype(np.float64))


def test_a_new_specification_works_on_old_devices(table: Table) -> None:
    """The table was made before these models were thought of; the device is told nothing but the text."""
    old = device(table, policy=replace(POLICY, budget=Budget(epsilon=100.0, delta=1e-6), daily_epsilon=100.0))
    later = {
        **FIELDS,
        "I": {"type": "category", "levels": ["0", "1", "2"]},
        "D": {"type": "number", "low": 1, "high": 2},
    }
    models = [
        Specification.from_formula("O ~ B", **KEYS),
        Specification.from_formula("B ~ O * D - O", **KEYS),
        Specification.from_formula("D ~ E1 + I", **{**KEYS, "link": "linear", "fields": later}),
        Specification.from_formula("I ~ E1 * E2", **{**KEYS, "link": "poisson"}),
        Specification.from_formula("E2 ~ (B + E1 + D)^2", **{**KEYS, "link": "multinomial"}),
        Specification.from_formula("O ~ .", **{**KEYS, "noise": "gaussian", "delta": 1e-7, "bound": "norm"}),
    ]
    for asked in models:
        updated = old.answer(asked.to_json(), np.zeros(asked.size))
        assert updated.shape == (asked.size,)
        assert np.isfinite(updated).all()
    assert charges(old) == len(models)


def test_each_contribution_is_charged_with_its_specification_and_day(table: Table) -> None:
    own, asked = device(table), asked_for()
    own.answer(asked.to_json(), np.zeros(33))
    note = own.ledger.entries()[-1].content()["note"]
    assert note == {"specification": asked.fingerprint, "day": "2026-03-01", "per": "model"}
    assert own.spent_today() == pytest.approx(2.0, abs=1e-3)


def test_the_daily_limit_holds_and_the_next_day_is_new(table: Table) -> None:
    own = device(table)
    for _ in range(2):
        own.answer(asked_for().to_json(), np.zeros(33))
    with pytest.raises(BudgetExceeded, match="daily limit is 4"):
        own.answer(asked_for().to_json(), np.zeros(33))
    assert charges(own) == 2
    tomorrow = on(date(2026, 3, 2), own)
    tomorrow.answer(asked_for().to_json(), np.zeros(33))
    assert charges(own) == 3


@pytest.mark.parametrize(("limit", "allowed"), [(3.0, True), (2.99, False)])
def test_the_daily_limit_is_no_guideline(table: Table, limit: float, allowed: bool) -> None:
    own = device(table, policy=replace(POLICY, daily_epsilon=limit))
    own.answer(asked_for(epsilon=1.0).to_json(), np.zeros(33))
    with nullcontext() if allowed else pytest.raises(BudgetExceeded, match="daily limit"):
        own.answer(asked_for(epsilon=2.0).to_json(), np.zeros(33))
    assert charges(own) == 1 + allowed


def test_a_clock_that_is_put_back_brings_no_day_back(table: Table) -> None:
    own = device(table)
    for _ in range(2):
        own.answer(asked_for().to_json(), np.zeros(33))
    yesterday = on(date(2026, 2, 28), own)
    with pytest.raises(BudgetExceeded, match="on 2026-03-01"):
        yesterday.answer(asked_for().to_json(), np.zeros(33))


def test_the_total_limit_holds_over_many_days(table: Table) -> None:
    own = device(table)
    days = [on(date(2026, 3, number), own) for number in range(1, 20)]
    for day in days[:5]:
        day.answer(asked_for().to_json(), np.zeros(33))
    for day in days[5:]:
        with pytest.raises(BudgetExceeded, match="the budget is 10"):
            day.answer(asked_for().to_json(), np.zeros(33))
    assert charges(own) == 5


def test_what_is_refused_for_lack_of_budget_draws_no_noise(table: Table) -> None:
    asked: list[str] = []

    class Watched:
        simulated = True
        source = "watched"

        def stream(self, purpose: str, *indices: int) -> Any:
            asked.append(purpose)
            return SeededRandomness(seed=1).stream(purpose, *indices)

    ledger = Ledger.in_memory(budget=BUDGET, relation=Relation.REPLACE_ONE)
    own = Device(table, ledger=ledger, policy=POLICY, randomness=Watched(), today=lambda: FIRST_DAY)
    for _ in range(2):
        own.answer(asked_for().to_json(), np.zeros(33))
    assert asked.count("noise") == 2
    with pytest.raises(BudgetExceeded):
        own.answer(asked_for().to_json(), np.zeros(33))
    assert asked.count("noise") == 2


def malicious() -> dict[str, tuple[str, Any]]:
    """What a server that wants to know more might send."""

    def text(**changes: object) -> str:
        return json.dumps({**json.loads(asked_for().to_json()), **changes})

    zeros = np.zeros(33)
    secret = {**FIELDS, "secret": {"type": "boolean"}}
    levels = {"type": "category", "levels": [str(number) for number in range(9000)]}
    return {
        "epsilon": (text(epsilon=2.1), zeros),
        "epsilon beyond numbers": (text(epsilon=1e308), zeros),
        "epsilon that is not a number": (asked_for().to_json().replace('"epsilon":2.0', '"epsilon":NaN'), zeros),
        "per feature, which is 33 times as much": (text(privacy="feature"), zeros),
        "no noise": (text(noise="none"), zeros),
        "delta": (text(noise="gaussian", delta=0.9), zeros),
        "no clip": (text(clip=0), zeros),
        "a negative clip": (text(clip=-1.0), zeros),
        "no gamma": (text(gamma=0.0), zeros),
        "an epsilon that no grid has room for": (text(epsilon=1e-15), zeros),
        "an epsilon beyond the small numbers": (text(epsilon=1e-300), zeros),
        "a clip beyond the small numbers": (text(clip=1e-200), zeros),
        "Gaussian noise that does not exist": (text(noise="gaussian", epsilon=1e-12, delta=1e-300), zeros),
        "too many instances": (text(instances=10**9), zeros),
        "too many examples": (text(examples=10**6), zeros),
        "too many weights": (text(fields={**FIELDS, "E1": levels, "E2": levels}), zeros),
        "hidden layers": (text(hidden=[4]), zeros),
        "an unknown field": (text(fields=secret, terms=[["secret"]]), np.zeros(2)),
        "an unknown key": (text(run="import os"), zeros),
        "a formula": (text(formula="O ~ B"), zeros),
        "no JSON": ("__import__('os')", zeros),
        "another number of weights": (text(), np.zeros(34)),
        "weights that are not finite": (text(), np.full(33, math.nan)),
        "infinite weights": (text(), np.full(33, math.inf)),
        "weights that are no numbers": (text(), ["x"] * 33),
    }


@pytest.mark.parametrize("attempt", malicious())
def test_a_malicious_server_is_refused_before_anything_is_spent(table: Table, attempt: str) -> None:
    own = device(table)
    before = own.ledger.head
    with pytest.raises(SpecificationRefused):
        own.answer(*malicious()[attempt])
    assert own.ledger.head == before


def test_what_the_malicious_server_changed_was_why(table: Table) -> None:
    """The control: unchanged, the same text and weights are accepted."""
    asked = asked_for().to_json()
    assert json.loads(asked)["epsilon"] == 2.0
    device(table).answer(asked, np.zeros(33))


def test_an_owner_may_keep_columns_from_models(table: Table) -> None:
    own = device(table, policy=replace(POLICY, fields={"O", "B"}))
    own.answer(Specification.from_formula("O ~ B", **KEYS).to_json(), np.zeros(2))
    with pytest.raises(SpecificationRefused, match="the field D is not one"):
        own.answer(Specification.from_formula("O ~ B + D", **KEYS).to_json(), np.zeros(3))


def test_a_policy_per_feature_counts_each_number_alone(table: Table) -> None:
    per_feature = replace(POLICY, unit="feature", whole_epsilon=66.0)
    asked = Specification.from_formula("O ~ E1 + E2 + D", **{**KEYS, "privacy": "feature"})
    own = device(table, policy=per_feature)
    own.answer(asked.to_json(), np.zeros(asked.size))
    assert own.spent_today() == pytest.approx(2.0, abs=1e-3)
    assert POLICY.cost(asked.mechanism) == pytest.approx(2.0 * asked.size)
    crossed = asked_for(bound="element")
    assert (crossed.size, crossed.repeats) == (33, 8)
    assert per_feature.cost(crossed.mechanism) == pytest.approx(2 * 8 / 33)


def test_an_allowance_per_model_pays_for_all_numbers_of_a_contribution(table: Table) -> None:
    loose = replace(POLICY, epsilon=100.0, daily_epsilon=100.0, budget=Budget(epsilon=100.0, delta=1e-6))
    own = device(table, policy=loose)
    own.answer(asked_for(privacy="feature").to_json(), np.zeros(33))
    assert own.spent_today() == pytest.approx(66.0)
    with pytest.raises(BudgetExceeded, match="daily limit"):
        own.answer(asked_for(privacy="feature").to_json(), np.zeros(33))


@pytest.mark.parametrize("link", ["linear", "poisson"])
def test_whatever_weights_a_server_sends_the_step_is_bounded(table: Table, link: str) -> None:
    """The same noise over steep weights and over their opposite: the steps differ by twice the clip at most."""
    asked = Specification.from_formula("I ~ B + D", **{**KEYS, "link": link, "clip": 0.25, "gamma": 1.0})
    steep = np.full(3, 1e3)
    up, down = (device(table, seed=7).answer(asked.to_json(), weights) - weights for weights in (steep, -steep))
    assert 0.2 < np.abs(up - down).max() <= 0.5 + 1e-5


def test_a_device_has_its_own_files(table: Table, tmp_path: Path) -> None:
    asked = asked_for().to_json()
    own = Device(table, ledger=tmp_path / "ledger.db", policy=POLICY)
    own.answer(asked, np.zeros(33))
    own.ledger.close()
    again = Device(table, ledger=tmp_path / "ledger.db", policy=POLICY)
    assert charges(again) == 1
    assert again.ledger.data_identity.name == "a device's examples, per model"
    again.ledger.close()
    with pytest.raises(LedgerMismatch, match="data_identity"):
        Device(table, ledger=tmp_path / "ledger.db", policy=replace(POLICY, unit="feature"))


def test_threads_cannot_both_spend_the_last_of_a_day(tmp_path: Path) -> None:
    """Each has its own connection to the ledger and its own lock, as two processes of one device have."""
    asked = asked_for(noise="laplace", epsilon=2.0, privacy="model")
    outcomes: list[str] = []
    ready, inside, together = threading.Barrier(4), [0], [0]

    def today() -> date:
        inside[0] += 1
        time.sleep(0.02)
        together.append(inside[0])
        inside[0] -= 1
        return FIRST_DAY

    def spend() -> None:
        policy = replace(POLICY, daily_epsilon=4.0)
        rows = {name: [1.0] for name in COLUMNS}
        with Device(rows, ledger=tmp_path / "ledger.db", policy=policy, today=today) as own:
            ready.wait()
            try:
                own.answer(asked.to_json(), np.zeros(33))
                outcomes.append("spent")
            except BudgetExceeded:
                outcomes.append("refused")

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused", "refused", "spent", "spent"]
    assert max(together) == 1


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: replace(POLICY, epsilon=0.0), "epsilon"),
        (lambda: replace(POLICY, daily_epsilon=-1.0), "daily_epsilon"),
        (lambda: replace(POLICY, most_weights=0), "most_weights"),
    ],
)
def test_impossible_policies_are_refused(make: Callable[[], Policy], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
