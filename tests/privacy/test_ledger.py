import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd.errors import (
    AccountingError,
    BudgetExceeded,
    ConfigError,
    LedgerError,
    LedgerMismatch,
    LedgerRolledBack,
    LedgerUnwritable,
    UnpricedEvent,
)
from incrowd.privacy import ledger as module
from incrowd.privacy.accounting import Budget, Price, Relation, price
from incrowd.privacy.events import Run, compose, event_from_json
from incrowd.privacy.ledger import Ledger, verify
from tests.privacy.ledgers import (
    BUDGET,
    EVENT,
    FITS,
    IDENTITY,
    RELATION,
    SMALL,
    begin,
    in_memory,
    quick_folder,
    written,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "run.ledger"


@pytest.fixture(params=["file", "memory"])
def ledger(request: pytest.FixtureRequest, path: Path) -> Iterator[Ledger]:
    with begin(path) if request.param == "file" else in_memory() as ledger:
        yield ledger


# What is written


def test_a_charge_is_in_the_file_as_json_when_charge_returns(path: Path) -> None:
    with begin(path) as ledger:
        entry = ledger.charge(EVENT, note={"round": 3, "final": False})
        rows = sqlite3.connect(path).execute("SELECT kind, body FROM entries WHERE position > 0").fetchall()
    ((kind, body),) = rows
    content = json.loads(body)
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
        "data_identity": IDENTITY,
    }
    assert not rest
    assert (ledger.budget, ledger.relation, ledger.data_identity) == (BUDGET, RELATION, IDENTITY)


def test_the_head_is_the_hash_of_the_last_entry(ledger: Ledger) -> None:
    before = ledger.head
    entry = ledger.charge(EVENT)
    assert ledger.head == entry.hash == ledger.entries()[-1].hash != before


def test_entries_carry_the_time_in_utc(ledger: Ledger) -> None:
    assert ledger.charge(EVENT).at.endswith("+00:00")


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
    with pytest.raises(
        BudgetExceeded, match=r"epsilon = 1\.06079 at delta = 1e-05; the budget is 1\..*release a reser"
    ):
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


# Reservations


def test_a_reservation_is_charged_in_order_and_without_a_price(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [(SMALL, 2), (EVENT, 1), (SMALL, 1)]
    ledger.reserve(runs, label="run")
    monkeypatch.setattr(module, "price", None)  # would raise
    for event in (SMALL, SMALL, EVENT, SMALL):
        other = EVENT if event is SMALL else SMALL
        with pytest.raises(ConfigError, match=r"event = .* charge the reservation's next event, which is number \d"):
            ledger.charge(other, reservation="run")
        ledger.charge(event, reservation="run")
    with pytest.raises(BudgetExceeded, match="all 4 events of the reservation 'run' are charged"):
        ledger.charge(SMALL, reservation="run")
    standing = ledger.reservation("run")
    assert (standing.runs, standing.charged, standing.events) == (tuple(runs), 4, 4)
    assert standing.id == standing.label == "run"


def test_an_equal_event_that_is_another_object_is_the_next_one(ledger: Ledger) -> None:
    ledger.reserve([(PoissonSampledDpEvent(0.01, GaussianDpEvent(20.0)), 1)], label="run")
    ledger.charge(PoissonSampledDpEvent(0.01, GaussianDpEvent(20.0)), reservation="run")


def test_an_unknown_reservation_is_refused_with_the_known_ones(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="reservations: none"):
        ledger.charge(EVENT, reservation="run")
    ledger.reserve([(EVENT, 1)], label="run")
    attempts: tuple[Callable[[str], object], ...] = (ledger.reservation, ledger.release_reservation)
    for attempt in attempts:
        with pytest.raises(ConfigError, match=r"reservation = 'walk': .*: 'run'"):
            attempt("walk")


def test_what_a_released_reservation_has_left_is_given_back(ledger: Ledger) -> None:
    ledger.reserve([(SMALL, 1), (EVENT, FITS - 1)], label="run")
    ledger.charge(SMALL, reservation="run")
    ledger.release_reservation("run")
    assert ledger.reservation("run").released
    assert ledger.promised() == ledger.spent()
    with pytest.raises(ConfigError, match="released"):
        ledger.charge(EVENT, reservation="run")
    with pytest.raises(ConfigError, match="it was released; reserve under a new label"):
        ledger.reserve([(SMALL, 1), (EVENT, FITS - 1)], label="run")
    ledger.reserve([(EVENT, FITS - 1)], label="second run")


def test_a_release_with_nothing_to_give_back_writes_nothing(ledger: Ledger) -> None:
    ledger.reserve([(EVENT, 1)], label="whole")
    ledger.charge(EVENT, reservation="whole")
    ledger.reserve([(EVENT, 1)], label="part")
    ledger.release_reservation("part")
    entries = ledger.entries()
    ledger.release_reservation("whole")
    ledger.release_reservation("part")
    assert ledger.entries() == entries


def test_the_same_reservation_is_continued_and_others_under_its_label_are_refused(ledger: Ledger) -> None:
    runs = [(EVENT, FITS)]
    ledger.reserve(runs, label="run")
    ledger.charge(EVENT, reservation="run")
    entries = ledger.entries()
    assert ledger.reserve([(GaussianDpEvent(10.0), FITS)], label="run").charged == 1
    assert ledger.entries() == entries
    with pytest.raises(ConfigError, match="label = 'run': it has other events"):
        ledger.reserve([(EVENT, 1)], label="run")


@pytest.mark.parametrize("runs", [[], [(EVENT, 0)], [(EVENT, True)], [(EVENT, 1.5)]], ids=str)
def test_runs_without_events_are_refused(ledger: Ledger, runs: list[Run]) -> None:
    with pytest.raises(ConfigError):
        ledger.reserve(runs, label="run")


@pytest.mark.parametrize("label", ["", "x" * 201, 3])
def test_a_label_is_a_short_text(ledger: Ledger, label: Any) -> None:
    with pytest.raises(ConfigError, match="label"):
        ledger.reserve([(EVENT, 1)], label=label)


def test_all_reservations_are_listed_in_order(ledger: Ledger) -> None:
    for label in ("b", "a"):
        ledger.reserve([(SMALL, 1)], label=label)
    assert [standing.label for standing in ledger.reservations()] == ["b", "a"]


def test_nothing_spent_costs_nothing(ledger: Ledger) -> None:
    assert ledger.spent().epsilon == ledger.promised().epsilon == 0


# Opening again


def test_a_reopened_ledger_goes_on_where_it_was(path: Path) -> None:
    with begin(path) as ledger:
        ledger.reserve([(EVENT, FITS)], label="run")
        ledger.charge(EVENT, reservation="run")
        before = ledger.spent(), ledger.promised(), ledger.entries(), ledger.reservations()
    with Ledger.open(path) as ledger:
        assert (ledger.spent(), ledger.promised(), ledger.entries(), ledger.reservations()) == before
        for _ in range(FITS - 1):
            ledger.charge(EVENT, reservation=ledger.reserve([(EVENT, FITS)], label="run").id)
        with pytest.raises(BudgetExceeded):
            ledger.charge(EVENT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget", Budget(epsilon=1.0, delta=2e-5)),
        ("budget", Budget(epsilon=2.0, delta=1e-5)),
        ("relation", Relation.REPLACE_ONE),
        ("data_identity", "patients of 2025"),
    ],
)
def test_other_terms_than_the_ledgers_are_refused(path: Path, field: str, value: Any) -> None:
    written(path, events=1)
    with pytest.raises(LedgerMismatch, match=f"begun with {field} = .* needs a new data identity") as caught:
        Ledger.open(path, **{field: value})
    assert repr(value) in str(caught.value)
    begin(path).close()


@pytest.mark.parametrize("missing", ["budget", "relation", "data_identity"])
def test_a_new_ledger_needs_all_terms_and_leaves_no_file_without_them(path: Path, missing: str) -> None:
    terms: dict[str, Any] = {"budget": BUDGET, "relation": RELATION, "data_identity": IDENTITY}
    del terms[missing]
    with pytest.raises(ConfigError, match=f"{missing} = None: there is no ledger at .*run.ledger yet"):
        Ledger.open(path, **terms)
    assert not list(path.parent.iterdir())
    path.touch()  # what a crash may leave
    with pytest.raises(ConfigError, match=missing):
        Ledger.open(path, **terms)
    begin(path).close()


def test_an_identity_without_a_name_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="data_identity"):
        Ledger.open(path, budget=BUDGET, relation=RELATION, data_identity="")


def test_names_of_files_are_taken_literally(folder: Path) -> None:
    path = folder / "50% of it?mode=memory#1.ledger"
    written(path, events=1)
    assert sorted(file.name for file in folder.iterdir()) == [path.name, f"{path.name}.witness"]


def test_a_closed_ledger_says_so(path: Path) -> None:
    with begin(path) as ledger:
        pass
    with pytest.raises(LedgerUnwritable, match="was closed: open it again"):
        ledger.charge(EVENT)


def test_a_ledger_is_not_used_across_a_fork(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(path) as ledger:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            with pytest.raises(LedgerUnwritable, match="open it anew in each process"):
                ledger.charge(EVENT)
        ledger.charge(EVENT)


# Reading


def contents(folder: Path) -> Mapping[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_reading_and_verifying_change_no_file(path: Path) -> None:
    head = written(path, events=3)
    before = contents(path.parent)
    with Ledger.read(path) as ledger:
        assert len(ledger.entries()) == 5
        with pytest.raises(LedgerUnwritable, match="readonly"):
            ledger.charge(SMALL)
    assert verify(path) == {
        "intact": True,
        "problem": None,
        "events": 3,
        "epsilon": price(compose([(SMALL, 3)]), delta=1e-5, relation=RELATION).epsilon,
        "delta": 1e-5,
        "head": head,
    }
    assert contents(path.parent) == before


def test_reading_what_is_not_there_creates_nothing(path: Path) -> None:
    attempts: tuple[Callable[[Path], object], ...] = (Ledger.read, verify)
    for attempt in attempts:
        with pytest.raises(ConfigError, match=r"path = .*run\.ledger': give the path of an existing ledger"):
            attempt(path)
    assert not list(path.parent.iterdir())


def test_a_reader_sees_what_a_writer_charges_meanwhile(path: Path) -> None:
    with begin(path) as writer, Ledger.read(path) as reader:
        writer.charge(EVENT)
        assert reader.spent() == writer.spent()
        assert reader.entries() == writer.entries()


def test_verify_looks_up_a_head_that_was_kept_elsewhere(path: Path) -> None:
    early = written(path, events=1)
    with begin(path) as ledger:
        ledger.charge(SMALL)
        ledger.verify(head=early)
        with pytest.raises(LedgerRolledBack, match=r"no entry of .* has the hash beef: put the latest copy back"):
            ledger.verify(head="beef")
    assert verify(path, head=early)["intact"]
    report = verify(path, head="beef")
    assert not report["intact"]
    assert report["problem"] is not None
    assert "beef" in report["problem"]


# Several writers


def test_a_ledger_knows_what_another_has_written(path: Path) -> None:
    with begin(path) as one, begin(path) as other:
        one.reserve([(EVENT, 3)], label="run")
        other.charge(EVENT, reservation="run")
        one.charge(EVENT, reservation="run")
        assert one.reservation("run") == other.reservation("run")
        assert one.reservation("run").charged == 2
        other.release_reservation("run")
        for ledger, _ in zip((one, other) * FITS, range(FITS - 2), strict=False):
            ledger.charge(EVENT)
        for ledger in (one, other):
            with pytest.raises(BudgetExceeded):
                ledger.charge(EVENT)


@pytest.mark.parametrize("action", ["charge", "reserve"])
def test_what_is_promised_while_a_price_is_computed_counts(
    path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(path) as one, begin(path) as other:
        waiting = [lambda: other.reserve([(EVENT, FITS)], label="other")]

        def slow(event: DpEvent, *, delta: float, relation: Relation) -> Price:
            if waiting:
                waiting.pop()()
            return price(event, delta=delta, relation=relation)

        monkeypatch.setattr(module, "price", slow)
        with pytest.raises(BudgetExceeded):
            one.charge(EVENT) if action == "charge" else one.reserve([(EVENT, 1)], label="run")
        assert not waiting
        assert [entry.kind for entry in one.entries()] == ["terms", "reserve"]


def test_two_that_reserve_the_same_run_at_once_share_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(path) as one, begin(path) as other:
        waiting = [lambda: other.reserve([(EVENT, 2)], label="run")]

        def slow(event: DpEvent, *, delta: float, relation: Relation) -> Price:
            if waiting:
                waiting.pop()()
            return price(event, delta=delta, relation=relation)

        monkeypatch.setattr(module, "price", slow)
        one.reserve([(EVENT, 2)], label="run")
        assert [entry.kind for entry in one.entries()] == ["terms", "reserve"]


def test_planned_charges_of_others_do_not_force_a_new_price(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(path) as one, begin(path) as other:
        other.reserve([(EVENT, 3)], label="run")
        prices = []

        def slow(event: DpEvent, *, delta: float, relation: Relation) -> Price:
            other.charge(EVENT, reservation="run")
            prices.append(event)
            return price(event, delta=delta, relation=relation)

        monkeypatch.setattr(module, "price", slow)
        one.charge(EVENT)
        assert len(prices) == 1


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    won: list[int] = []

    def spend(thread: int) -> None:
        while True:
            try:
                ledger.charge(EVENT)
            except BudgetExceeded:
                return
            won.append(thread)

    threads = [threading.Thread(target=spend, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == FITS
    assert ledger.spent().epsilon <= 1


def test_a_writer_that_is_kept_waiting_too_long_says_so(path: Path) -> None:
    written(path, events=1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnwritable, match=r"locked.*another process holds it: wait for that process or end it"):
        Ledger.open(path, busy_timeout_s=0.01)
    holder.close()
    Ledger.open(path, busy_timeout_s=0.01).close()


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(LedgerUnwritable, match=r"no/run\.ledger .*check that its folder exists"):
        begin(folder / "no" / "run.ledger")


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


def try_to_reserve(ledger: Ledger, reference: Reference, label: str, runs: list[Run]) -> None:
    events = [event for event, count in runs for _ in range(count)]
    if reference.affords(events):
        ledger.reserve(runs, label=label)
        reference.plans[label] = events
    else:
        with pytest.raises(BudgetExceeded):
            ledger.reserve(runs, label=label)
