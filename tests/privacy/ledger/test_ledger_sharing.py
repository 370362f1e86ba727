import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent

from incrowd.errors import (
    BudgetExceeded,
    ConfigError,
    LedgerMismatch,
    LedgerRolledBack,
    LedgerUnwritable,
)
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger import ledger as module
from incrowd.privacy.ledger.ledger import Ledger, verify
from tests.privacy.ledgers import (
    BUDGET,
    EVENT,
    FITS,
    IDENTITY,
    RELATION,
    SMALL,
    begin,
    written,
)

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
    with pytest.raises(LedgerMismatch, match=f"begun with {field} = .*: give its own, or name another file") as caught:
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
