import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, SampledWithoutReplacementDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd.errors import (
    AccountingError,
    BudgetExceeded,
    ConfigError,
    LedgerError,
    UnpricedEvent,
)
from incrowd.privacy.account.accounting import Price, price
from incrowd.privacy.account.events import RepeatedEvent, compose, event_from_json
from incrowd.privacy.ledger import ledger as module
from incrowd.privacy.ledger.ledger import DataIdentity, Ledger, verify
from tests.privacy.ledgers import (
    BUDGET,
    EVENT,
    FITS,
    IDENTITY,
    RELATION,
    SMALL,
    begin,
    in_memory,
    reads,
    written,
)

# What is written


def test_a_charge_is_in_the_file_as_json_when_charge_returns(path: Path) -> None:
    with begin(path) as ledger:
        entry = ledger.charge(EVENT, note={"round": 3, "final": False}).entry
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT kind, body FROM entries WHERE position > 0").fetchall()
    ((kind, body),) = rows
    content = json.loads(body)
    assert len(content.pop("nonce")) == 16
    assert kind == "charge"
    assert event_from_json(content["event"]) == EVENT
    assert content["note"] == {"round": 3, "final": False}
    assert content["reservation"] is None
    assert body == entry.body
    assert entry.content() == content


def test_the_first_entry_holds_the_terms(ledger: Ledger) -> None:
    first, *rest = ledger.entries()
    assert first.kind == "terms"
    assert first.content() == {
        "budget": {"epsilon": 1.0, "delta": 1e-5},
        "relation": "ADD_OR_REMOVE_ONE",
        "data_identity": {
            "name": IDENTITY,
            "fingerprint": None,
            "public": False,
            "unit": None,
            "division": "",
            "whole": None,
            "released": False,
        },
        "forgets": [],
        "id": ledger.id,
    }
    assert not rest
    assert (ledger.budget, ledger.relation, ledger.data_identity) == (BUDGET, RELATION, DataIdentity(name=IDENTITY))
    assert ledger.forgets == ()


def test_the_head_is_the_hash_of_the_last_entry(ledger: Ledger) -> None:
    before = ledger.head
    entry = ledger.charge(EVENT).entry
    assert ledger.head == entry.hash == ledger.entries()[-1].hash != before


@given(st.integers(0, FITS), st.integers(0, FITS + 3))
def test_entries_from_a_position_on_are_the_last_of_all(charges: int, start: int) -> None:
    ledger = in_memory()
    for _ in range(charges):
        ledger.charge(EVENT)
    assert ledger.entries(start=start) == ledger.entries()[start:]
    with pytest.raises(ConfigError, match="start = -1"):
        ledger.entries(start=-1)


def test_entries_before_the_position_are_not_read_again(ledger: Ledger) -> None:
    for charged in range(1, FITS + 1):
        ledger.charge(EVENT)
        assert reads(ledger.entries) == charged + 1
        assert reads(lambda: ledger.entries(start=charged)) == 1  # noqa: B023 - called at once


def test_entries_carry_the_day_and_no_closer_time(ledger: Ledger) -> None:
    before = datetime.now(UTC).date()
    at = ledger.charge(EVENT).entry.at
    assert before <= date.fromisoformat(at) <= datetime.now(UTC).date()
    assert len(at) == len("2026-01-31")


def test_what_was_written_twice_is_not_the_same_entry(ledger: Ledger) -> None:
    """The same charges on the same day, in two ledgers or in a copy that was put back, must not pass for each other."""
    first, second = ledger.charge(EVENT).entry, ledger.charge(EVENT).entry
    assert first.content() | {"key": None} == second.content() | {"key": None}
    assert first.body != second.body


def test_every_commit_waits_for_the_disk(path: Path) -> None:
    # Private on purpose: that SQLite syncs file, journal and folder shows only when the power fails.
    with begin(path) as ledger:
        connection = ledger._chain._connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_the_witness_is_synced_before_it_takes_its_place_and_its_folder_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []
    sync, replace = os.fsync, os.replace

    def spied_sync(descriptor: int) -> None:
        sync(descriptor)
        steps.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    def spied_replace(self: Path, target: Path) -> None:
        replace(self, target)
        steps.append(("replace", target.name))

    with begin(path) as ledger:
        monkeypatch.setattr(os, "fsync", spied_sync)
        monkeypatch.setattr(Path, "replace", spied_replace)
        ledger.charge(EVENT)
    assert steps == [
        ("sync", "run.ledger.witness.new"),
        ("replace", "run.ledger.witness"),
        ("sync", path.parent.name),
    ]


def test_entries_can_be_neither_changed_nor_removed_nor_replaced(path: Path) -> None:
    written(path, events=2)
    connection = sqlite3.connect(path)
    for statement in (
        "UPDATE entries SET body = '{}'",
        "DELETE FROM entries",
        "REPLACE INTO entries SELECT 1, kind, at, body, hash FROM entries WHERE position = 2",
        "INSERT INTO entries SELECT 9, kind, at, body, hash FROM entries WHERE position = 2",
        "INSERT INTO entries SELECT -1, kind, at, body, hash FROM entries WHERE position = 2",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="entries are only appended"):
            connection.execute(statement)
    connection.close()
    assert verify(path)["intact"]


# What is refused


def test_the_charge_that_would_exceed_the_budget_is_refused_before_it_is_written(ledger: Ledger) -> None:
    for _ in range(FITS):
        ledger.charge(EVENT)
    entries = ledger.entries()
    with pytest.raises(BudgetExceeded, match=r"epsilon = 1\.06079 at delta = 1e-05; the budget is 1, of which"):
        ledger.charge(EVENT)
    assert ledger.entries() == entries
    assert ledger.spent().epsilon == price(compose([(EVENT, FITS)]), delta=1e-5, relation=RELATION).epsilon <= 1
    ledger.charge(SMALL)  # something smaller still fits


def test_the_reservation_that_would_exceed_the_budget_is_refused_before_it_is_written(ledger: Ledger) -> None:
    entries = ledger.entries()
    with pytest.raises(BudgetExceeded):
        ledger.reserve([(EVENT, FITS + 1)], label="run")
    assert ledger.entries() == entries
    ledger.reserve([(EVENT, FITS)], label="run")


def test_what_is_reserved_cannot_be_spent_by_others(ledger: Ledger) -> None:
    ledger.reserve([(EVENT, FITS)], label="run")
    with pytest.raises(BudgetExceeded):
        ledger.charge(EVENT)
    with pytest.raises(BudgetExceeded):
        ledger.reserve([(EVENT, 1)], label="other")
    for _ in range(FITS):
        ledger.charge(EVENT, reservation="run")
    assert ledger.spent() == ledger.promised()


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(5.0)), UnpricedEvent),  # does not fit the relation
        (DpEvent(), UnpricedEvent),
        (GaussianDpEvent(float("nan")), ConfigError),
        (GaussianDpEvent(0.0), ConfigError),
        (GaussianDpEvent(1e-200), BudgetExceeded),
    ],
)
def test_an_event_that_cannot_be_priced_is_refused_and_not_written(
    ledger: Ledger, event: DpEvent, error: type[Exception]
) -> None:
    entries = ledger.entries()
    with pytest.raises(error):
        ledger.charge(event)
    with pytest.raises(error):
        ledger.reserve([(event, 1)], label="run")
    assert ledger.entries() == entries


@pytest.mark.parametrize("epsilon", [float("nan"), float("inf")])
def test_a_price_that_is_no_number_is_over_any_budget(
    ledger: Ledger, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Price(epsilon=epsilon, accountant="PLD", by_accountant={})
    monkeypatch.setattr(module, "price", lambda *_, **__: answer)
    with pytest.raises(BudgetExceeded):
        ledger.charge(EVENT)
    with pytest.raises(LedgerError):
        ledger.verify()
    assert len(ledger.entries()) == 1


def test_when_the_accountant_fails_nothing_is_written(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> Price:
        raise AccountingError("no answer")

    monkeypatch.setattr(module, "price", failing)
    with pytest.raises(AccountingError):
        ledger.charge(EVENT)
    with pytest.raises(AccountingError):
        ledger.reserve([(EVENT, 1)], label="run")
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    "note",
    [{"clients": [1, 2]}, {"loss": float("inf")}, {"text": "x" * 1000}, {1: "number"}, {"bytes": b""}],
    ids=str,
)
def test_a_note_that_is_not_small_and_flat_is_refused(ledger: Ledger, note: Any) -> None:
    with pytest.raises(ConfigError, match="note"):
        ledger.charge(EVENT, note=note)
    assert len(ledger.entries()) == 1


# Against a slow, obvious reference


class Reference:
    """The rule, written down: whatever is promised has a price within the budget."""

    def __init__(self) -> None:
        self.spent: list[DpEvent] = []
        self.plans: dict[str, list[DpEvent]] = {}

    def affords(self, events: list[DpEvent]) -> bool:
        promised = [*self.spent, *(event for plan in self.plans.values() for event in plan), *events]
        runs = [(event, 1) for event in promised]
        return price(compose(runs), delta=BUDGET.delta, relation=RELATION).epsilon <= BUDGET.epsilon * (1 + 1e-12)


Action = tuple[str, DpEvent, int]
EVENTS = st.sampled_from([GaussianDpEvent(10.0), GaussianDpEvent(17.0), GaussianDpEvent(25.0)])
ACTIONS = st.tuples(st.sampled_from(["charge", "planned", "reserve", "release"]), EVENTS, st.integers(0, 3))


@pytest.mark.slow
@settings(max_examples=150)
@given(actions=st.lists(ACTIONS, max_size=30))
def test_any_sequence_of_calls_is_answered_as_the_reference_would(actions: list[Action]) -> None:
    reference = Reference()
    with in_memory() as ledger:
        for action, event, number in actions:
            label = f"run {number}"
            match action:
                case "charge":
                    try_to_charge(ledger, reference, event)
                case "planned" if reference.plans.get(label):
                    reference.spent.append(reference.plans[label].pop(0))
                    ledger.charge(reference.spent[-1], reservation=label)
                case "reserve" if label not in reference.plans:
                    try_to_reserve(ledger, reference, label, [(event, number + 1), (EVENT, 1)])
                case "release" if label in reference.plans:
                    ledger.release_reservation(label)
                    reference.plans[label] = []
        expected = price(compose([(event, 1) for event in reference.spent]), delta=BUDGET.delta, relation=RELATION)
        assert ledger.spent().epsilon == pytest.approx(expected.epsilon, rel=1e-12)
        assert ledger.verify().charged == len(reference.spent)


def try_to_charge(ledger: Ledger, reference: Reference, event: DpEvent) -> None:
    if reference.affords([event]):
        ledger.charge(event)
        reference.spent.append(event)
    else:
        with pytest.raises(BudgetExceeded):
            ledger.charge(event)


def try_to_reserve(ledger: Ledger, reference: Reference, label: str, runs: list[RepeatedEvent]) -> None:
    events = [event for event, count in runs for _ in range(count)]
    if reference.affords(events):
        ledger.reserve(runs, label=label)
        reference.plans[label] = events
    else:
        with pytest.raises(BudgetExceeded):
            ledger.reserve(runs, label=label)
