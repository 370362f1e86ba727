"""Charges, reservations and readers of one ledger: what is written, what is refused, what several see of each other."""

import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

from incrowd.errors import (
    AccountingError,
    BudgetExceeded,
    ConfigError,
    LedgerDamaged,
    LedgerError,
    LedgerMismatch,
    LedgerRolledBack,
    LedgerUnwritable,
    UnpricedEvent,
)
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import canonical, compose, event_from_json
from incrowd.privacy.ledger import chain
from incrowd.privacy.ledger import ledger as module
from incrowd.privacy.ledger.ledger import Ledger, verify
from tests.privacy.ledgers import BUDGET, EVENT, FITS, IDENTITY, RELATION, SMALL, begin, written

# Entries


def test_a_charge_is_in_the_file_as_json_when_charge_returns(path: Path) -> None:
    with begin(path) as ledger:
        entry = ledger.charge(EVENT, note={"round": 3, "final": False}).entry
        with closing(sqlite3.connect(path)) as connection:
            ((kind, body),) = connection.execute("SELECT kind, body FROM entries WHERE position > 0").fetchall()
        assert ledger.head == entry.hash == ledger.entries()[-1].hash
    content = json.loads(body)
    assert len(content.pop("nonce")) == 16
    assert (kind, event_from_json(content["event"])) == ("charge", EVENT)
    assert (content["note"], content["reservation"]) == ({"round": 3, "final": False}, None)
    assert (body, content) == (entry.body, entry.content())


def test_entries_carry_the_day_and_no_closer_time(ledger: Ledger) -> None:
    before = datetime.now(UTC).date()
    at = ledger.charge(EVENT).entry.at
    assert before <= date.fromisoformat(at) <= datetime.now(UTC).date()
    assert len(at) == len("2026-01-31")


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
        ("sync", f"{path.name}.witness.part"),
        ("replace", f"{path.name}.witness"),
        ("sync", path.parent.name),
    ]


def test_entries_can_be_neither_changed_nor_removed_nor_replaced(path: Path) -> None:
    written(path, events=2)
    with closing(sqlite3.connect(path)) as connection:
        for statement in (
            "UPDATE entries SET body = '{}'",
            "DELETE FROM entries",
            "REPLACE INTO entries SELECT 1, kind, at, body, hash FROM entries WHERE position = 2",
            "INSERT INTO entries SELECT 9, kind, at, body, hash FROM entries WHERE position = 2",
            "INSERT INTO entries SELECT -1, kind, at, body, hash FROM entries WHERE position = 2",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="entries are only appended"):
                connection.execute(statement)
    assert verify(path)["intact"]


# The budget, to the last digit


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
    with pytest.raises(BudgetExceeded):
        ledger.reserve([(EVENT, FITS + 1)], label="run")
    assert len(ledger.entries()) == 1
    ledger.reserve([(EVENT, FITS)], label="run")


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
    for attempt in (lambda: ledger.charge(event), lambda: ledger.reserve([(event, 1)], label="run")):
        with pytest.raises(error):
            attempt()
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("epsilon", [float("nan"), float("inf"), None])
def test_a_price_that_is_no_number_is_over_any_budget(
    ledger: Ledger, epsilon: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object, **__: object) -> Price:
        if epsilon is None:
            raise AccountingError("no answer")
        return Price(epsilon=epsilon, accountant="PLD", by_accountant={})

    monkeypatch.setattr(module, "price", answer)
    monkeypatch.setattr(module, "quickly_within", lambda *_: False)
    for attempt in (lambda: ledger.charge(EVENT), lambda: ledger.reserve([(EVENT, 1)], label="run")):
        with pytest.raises(AccountingError if epsilon is None else BudgetExceeded):
            attempt()
    with pytest.raises(AccountingError if epsilon is None else LedgerError):
        ledger.verify()
    assert len(ledger.entries()) == 1


def with_budget_for(event: DpEvent, times: int, share: float = 1.0) -> Ledger:
    """A ledger whose budget is this share of the price of so many of the event, to the last bit at a share of 1."""
    needed = price(compose([(event, times)]), delta=BUDGET.delta, relation=RELATION).epsilon
    epsilon = math.nextafter(needed, 0) if share == 1 - 2**-53 else needed * share
    return Ledger.in_memory(budget=Budget(epsilon=epsilon, delta=BUDGET.delta), relation=RELATION)


each_event = pytest.mark.parametrize(
    "event", [GaussianDpEvent(2.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))], ids=["exact", "sampled"]
)


@each_event
@pytest.mark.parametrize("share", [1.0, 1 - 2**-53, 1 - 1e-9, 1 / 1.005, 1 / 1.01])
def test_what_is_the_least_above_the_budget_is_refused(event: DpEvent, share: float) -> None:
    ledger = with_budget_for(event, 3, share)
    ledger.reserve([(event, 2)], label="first")
    if share == 1.0:
        ledger.charge(event)
        assert ledger.promised().epsilon == ledger.budget.epsilon
    else:
        for attempt in (lambda: ledger.charge(event), lambda: ledger.reserve([(event, 1)], label="one more")):
            with pytest.raises(BudgetExceeded):
                attempt()
        assert len(ledger.entries()) == 2


@each_event
@pytest.mark.parametrize(("share", "intact"), [(1 - 1e-12, True), (1 - 1e-8, False), (1 / 1.005, False)])
def test_a_ledger_with_the_least_too_much_is_not_intact(
    event: DpEvent, share: float, intact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rounding may separate what was written from what is computed again."""
    ledger = with_budget_for(event, 3, share)
    with monkeypatch.context() as careless:
        careless.setattr(Ledger, "_check_budget", lambda *_: None)
        for _ in range(3):
            ledger.charge(event)
    if intact:
        ledger.verify()
    else:
        with pytest.raises(LedgerDamaged, match="promises epsilon"):
            ledger.verify()


def test_charges_up_to_the_last_of_a_budget_need_few_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    ledger, prices, check = with_budget_for(sampled, 40), [], Ledger._check_budget

    def counted(its: Ledger, total: list[tuple[DpEvent, int]]) -> None:
        prices.append(total)
        check(its, total)

    monkeypatch.setattr(module, "quickly_within", lambda *_: False)
    monkeypatch.setattr(Ledger, "_check_budget", counted)
    for _ in range(40):
        ledger.charge(sampled)
    for event in (sampled, SMALL):  # no price of other events covers the small one
        with pytest.raises(BudgetExceeded):
            ledger.charge(event)
    assert ledger.verify().charged == 40
    assert len(prices) < 15


def test_a_price_of_more_events_covers_fewer_with_some_of_the_budget_to_spare(ledger: Ledger) -> None:
    for count, times, share, covered in (
        (3, 3, 0.998, True),
        (3, 2, 1.0, False),
        (3, 2, 0.998, True),
        (2, 3, 0.1, False),
    ):
        ledger._proven = Counter({canonical(EVENT): count}), share * ledger.budget.epsilon
        assert ledger._is_proven([(EVENT, times - 1), (EVENT, 1)]) is covered


# Reservations


def promised(ledger: Ledger, *runs: tuple[DpEvent, int]) -> bool:
    return sorted(ledger.commitments(), key=str) == sorted(runs, key=str)


def test_a_reservation_is_continued_charged_in_order_and_given_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [(SMALL, 2), (EVENT, FITS - 1)]
    for charged in (0, 3):
        assert ledger.reserve(runs, label="run").charged == charged  # the second time it goes on
        assert promised(ledger, *runs)
        with monkeypatch.context() as free:
            free.setattr(module, "price", None)  # would raise
            free.setattr(module, "quickly_within", None)
            for event, other in ((SMALL, EVENT), (SMALL, EVENT), (EVENT, SMALL)) if not charged else ():
                with pytest.raises(ConfigError, match=r"event = .* charge the reservation's next event, .* number \d"):
                    ledger.charge(other, reservation="run")
                ledger.charge(GaussianDpEvent(event.noise_multiplier), reservation="run")  # equal to the next
    (standing,) = ledger.reservations()
    assert (standing.label, standing.runs, standing.charged, standing.events) == ("run", tuple(runs), 3, FITS + 1)
    for _ in range(2):  # the second time there is nothing to give back
        ledger.release_reservation("run")
    assert len(ledger.entries()) == 6
    assert promised(ledger, (SMALL, 2), (EVENT, 1))
    for again, words in (
        (lambda: ledger.charge(EVENT, reservation="run"), "it was released; reserve again under a new label"),
        (lambda: ledger.reserve(runs, label="run"), "it was released; reserve under a new label"),
        (lambda: ledger.release_reservation("walk"), r"reservation = 'walk': .*: 'run'"),
    ):
        with pytest.raises(ConfigError, match=words):
            again()
    ledger.reserve([(EVENT, FITS - 1)], label="second run")
    with pytest.raises(ConfigError, match="label = 'second run': it has other events"):
        ledger.reserve([(EVENT, 1)], label="second run")
    for _ in range(FITS - 1):
        ledger.charge(EVENT, reservation="second run")
    with pytest.raises(BudgetExceeded, match=f"all {FITS - 1} events of the reservation 'second run' are charged"):
        ledger.charge(EVENT, reservation="second run")


def test_plans_are_reserved_together_or_not_at_all(ledger: Ledger) -> None:
    both = {"one": [(EVENT, FITS - 1)], "two": [(EVENT, 1)]}
    with pytest.raises(BudgetExceeded):
        ledger.reserve_all(both | {"three": [(EVENT, 1)]})
    assert ledger.reservations() == ()
    assert ledger.reserve_all(both) == ledger.reserve_all(both) == list(ledger.reservations())
    with pytest.raises(ConfigError, match="it has other events"):
        ledger.reserve_all({"three": [(SMALL, 1)], "two": [(EVENT, 2)]})
    with pytest.raises(BudgetExceeded):
        ledger.check_room([(EVENT, 1)])


@pytest.mark.parametrize("runs", [[], [(EVENT, 0)], [(EVENT, True)], [(EVENT, 1.5)]], ids=str)
@pytest.mark.parametrize("label", ["run", "", "x" * 201, 3])
def test_runs_without_events_and_labels_that_are_no_short_text_are_refused(
    ledger: Ledger, runs: Any, label: Any
) -> None:
    with pytest.raises(ConfigError):
        ledger.reserve(runs if label == "run" else [(EVENT, 1)], label=label)


@pytest.mark.parametrize(
    "note", [{"clients": [1, 2]}, {"loss": float("inf")}, {"text": "x" * 1000}, {1: "number"}, {"bytes": b""}], ids=str
)
def test_a_note_that_is_not_small_and_flat_is_refused(ledger: Ledger, note: Any) -> None:
    with pytest.raises(ConfigError, match="note"):
        ledger.charge(EVENT, note=note)


# Opening and reading


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
    with pytest.raises(LedgerMismatch, match=f"begun with {field} = .*: give its own, or name another file") as caught:
        Ledger.open(path, **{field: value})
    assert repr(value) in str(caught.value)


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


def test_a_ledger_is_not_used_across_a_fork_nor_when_it_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(path) as ledger:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            with pytest.raises(LedgerUnwritable, match="open it anew in each process"):
                ledger.charge(EVENT)
        ledger.charge(EVENT)
    with pytest.raises(LedgerUnwritable, match="was closed: open it again"):
        ledger.charge(EVENT)


def test_reading_and_verifying_change_no_file(path: Path) -> None:
    attempts: tuple[Callable[[Path], object], ...] = (Ledger.read, verify)
    for attempt in attempts:
        with pytest.raises(ConfigError, match=r"path = .*run\.ledger': give the path of an existing ledger"):
            attempt(path)
    assert not list(path.parent.iterdir())
    head = written(path, events=3)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with Ledger.read(path) as ledger:
        assert len(ledger.entries()) == 5
        with pytest.raises(LedgerUnwritable, match="readonly"):
            ledger.charge(SMALL)
    epsilon = price(compose([(SMALL, 3)]), delta=1e-5, relation=RELATION).epsilon
    report = {"intact": True, "problem": None, "events": 3, "epsilon": epsilon, "delta": 1e-5, "head": head}
    assert verify(path) == report
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_verify_looks_up_a_head_that_was_kept_elsewhere(path: Path) -> None:
    early = written(path, events=1)
    with begin(path) as ledger:
        ledger.charge(SMALL)
        ledger.verify(head=early)
        with pytest.raises(LedgerRolledBack, match=r"no entry of .* has the hash beef: put the latest copy back"):
            ledger.verify(head="beef")
    assert verify(path, head=early)["intact"]
    report = verify(path, head="beef")
    assert (report["intact"], report["epsilon"]) == (False, None)
    assert "beef" in report["problem"]


# Several at once


def test_a_writer_that_is_kept_waiting_too_long_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BUSY_S", 0.01)
    written(path, events=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            LedgerUnwritable, match=r"locked.*another process holds it: wait for that process or end it"
        ):
            Ledger.open(path)
    Ledger.open(path).close()
