"""Any sequence of charges, reservations, crashes, copies, moves and restorations, against a model in plain Python."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from incrowd._random import SeededRandomness
from incrowd.errors import BudgetExceeded, ConfigError, LedgerMisplaced, LedgerRolledBack
from incrowd.privacy.account.accounting import price
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.home import Home, backup, move, restore
from incrowd.privacy.ledger.ledger import Ledger, verify
from tests.privacy.ledgers import BUDGET, RELATION, quick_folder

EVENTS = st.sampled_from([GaussianDpEvent(10.0), GaussianDpEvent(17.0), GaussianDpEvent(25.0)])
HANDLES, LABELS = st.integers(0, 1), st.sampled_from(["a", "b", "c"])
IDENTITY = DataIdentity(name="shop", fingerprint="1:aa", unit="client")


class Killed(Exception):
    """What a process that is killed does not survive."""


class LedgerMachine(RuleBasedStateMachine):
    """One registered ledger and two handles on it, as two processes have them.

    The model holds what was charged, what every plan still has to charge, and how many entries there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.folder = self.stack.enter_context(quick_folder())
        os.environ["INCROWD_STATE"] = str(self.folder / "state")  # put back by the fixture of all tests
        self.home, self.numbers = Home.of_user(), count()
        self.path = self.home.ledger_of(IDENTITY, budget=BUDGET, relation=RELATION).path
        self.handles = [Ledger.open(self.path), Ledger.open(self.path)]
        self.spent: list[GaussianDpEvent] = []
        self.plans: dict[str, list[GaussianDpEvent]] = {}
        self.runs: dict[str, list[RepeatedEvent]] = {}
        self.given_back: set[str] = set()
        self.keys: dict[str, tuple[GaussianDpEvent, int]] = {}
        self.entries = 1
        self.copies: list[tuple[Path, int]] = []
        self.backups: list[tuple[Path, int]] = []
        self.copy()
        self.back_up()

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        self.stack.close()

    def affords(self, *more: GaussianDpEvent) -> bool:
        promised = [*self.spent, *(event for plan in self.plans.values() for event in plan), *more]
        cost = price(compose([(event, 1) for event in promised]), delta=BUDGET.delta, relation=RELATION).epsilon
        return cost <= BUDGET.epsilon * (1 + 1e-12)

    def attempt(self, work: Callable[[], object], allowed: bool, refused: type[Exception]) -> bool:
        """Do what the model allows; what it does not is refused, and nothing is written."""
        if allowed:
            work()
            return True
        with pytest.raises(refused):
            work()
        return False

    def reopen(self) -> None:
        for handle in self.handles:
            handle.close()
        self.handles = [Ledger.open(self.path), Ledger.open(self.path)]

    def file(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self.numbers)}"

    @rule(handle=HANDLES, event=EVENTS)
    def charge(self, handle: int, event: GaussianDpEvent) -> None:
        if self.attempt(lambda: self.handles[handle].charge(event), self.affords(event), BudgetExceeded):
            self.spent.append(event)
            self.entries += 1

    @rule(handle=HANDLES, event=EVENTS, key=LABELS, seed=st.integers(0, 1))
    def charge_under_a_key(self, handle: int, event: GaussianDpEvent, key: str, seed: int) -> None:
        def work() -> object:
            return self.handles[handle].charge(event, key=key, randomness=SeededRandomness(seed))

        if key in self.keys:
            self.attempt(work, self.keys[key] == (event, seed), ConfigError)
        elif self.attempt(work, self.affords(event), BudgetExceeded):
            self.keys[key] = event, seed
            self.spent.append(event)
            self.entries += 1

    @rule(handle=HANDLES, label=LABELS, event=EVENTS, times=st.integers(1, 3))
    def reserve(self, handle: int, label: str, event: GaussianDpEvent, times: int) -> None:
        runs: list[RepeatedEvent] = [(event, times), (GaussianDpEvent(25.0), 1)]
        work = lambda: self.handles[handle].reserve(runs, label=label)  # noqa: E731 - called at once
        plan = [event] * times + [GaussianDpEvent(25.0)]
        if label in self.runs:
            self.attempt(work, self.runs[label] == runs and label not in self.given_back, ConfigError)
        elif self.attempt(work, self.affords(*plan), BudgetExceeded):
            self.runs[label], self.plans[label] = runs, plan
            self.entries += 1

    @rule(handle=HANDLES, label=LABELS, event=EVENTS)
    def charge_a_reservation(self, handle: int, label: str, event: GaussianDpEvent) -> None:
        plan = self.plans.get(label, [])
        refused = BudgetExceeded if label in self.runs and label not in self.given_back and not plan else ConfigError
        work = lambda: self.handles[handle].charge(event, reservation=label)  # noqa: E731 - called at once
        if self.attempt(work, plan[:1] == [event], refused):
            self.spent.append(plan.pop(0))
            self.entries += 1

    @precondition(lambda self: self.plans)
    @rule(handle=HANDLES, data=st.data())
    def give_back(self, handle: int, data: st.DataObject) -> None:
        label = data.draw(st.sampled_from(sorted(self.plans)))
        self.handles[handle].release_reservation(label)
        if self.plans[label]:
            self.given_back.add(label)
            self.plans[label] = []
            self.entries += 1

    @rule(event=EVENTS, committed=st.booleans())
    def crash(self, event: GaussianDpEvent, committed: bool) -> None:
        """Killed before the commit, nothing is charged; killed between the commit and the witness, the event is."""

        def killed(*_: object) -> None:
            raise Killed

        if self.affords(event):
            its = self.handles[0]
            (its if committed else its._chain).__dict__["_testify" if committed else "append"] = killed
            with pytest.raises(Killed):
                its.charge(event)
            if committed:
                self.spent.append(event)
                self.entries += 1
        self.reopen()

    @rule()
    def copy(self) -> None:
        copy = self.file("copy")
        shutil.copy(self.path, copy)
        self.copies.append((copy, self.entries))
        with pytest.raises(LedgerMisplaced, match="is a copy of the ledger"):
            Ledger.open(copy)

    @rule(data=st.data(), with_witness=st.booleans())
    def put_a_copy_back(self, data: st.DataObject, with_witness: bool) -> None:
        """An older copy is refused, even if its witness comes with it; the right one goes on."""
        copy, entries = data.draw(st.sampled_from(self.copies))
        right = self.path.read_bytes()
        witness = self.path.with_name(f"{self.path.name}.witness")
        its = witness.read_bytes()
        self.path.write_bytes(copy.read_bytes())
        if with_witness:
            hashes = self.handles[0]._tally.hashes
            witness.write_text(f'{{"entries": {entries}, "head": "{hashes[entries - 1]}"}}')
        for work in (lambda: Ledger.open(self.path).close(), self.handles[1].spent):
            self.attempt(work, entries == self.entries, LedgerRolledBack)
        self.path.write_bytes(right)
        witness.write_bytes(its)
        self.reopen()

    @rule()
    def back_up(self) -> None:
        kept = self.file("backup")
        assert backup(self.path, kept).entries == self.entries
        self.backups.append((kept, self.entries))
        with pytest.raises(LedgerMisplaced, match="is a backup"):
            Ledger.open(kept)

    @rule(data=st.data())
    def lose_and_restore(self, data: st.DataObject) -> None:
        """Only a backup without a missing entry is restored."""
        kept, entries = data.draw(st.sampled_from(self.backups))
        right = self.path.read_bytes()
        self.path.unlink()
        with pytest.raises(LedgerRolledBack):
            Ledger.open(self.path)
        if not self.attempt(lambda: restore(kept, self.path), entries == self.entries, LedgerRolledBack):
            self.path.write_bytes(right)
            self.path.chmod(0o600)
        self.reopen()

    @rule()
    def move(self) -> None:
        target = self.file("moved")
        assert move(self.home, self.path, target).path == target
        with pytest.raises(LedgerRolledBack, match="replaced or removed while in use"):
            self.handles[0].spent()
        self.path = target
        self.reopen()

    @invariant()
    def both_handles_and_the_registry_agree_with_the_model(self) -> None:
        expected = price(compose([(event, 1) for event in self.spent]), delta=BUDGET.delta, relation=RELATION)
        for handle in self.handles:
            assert handle.spent().epsilon == pytest.approx(expected.epsilon, rel=1e-12)
            assert len(handle.entries()) == self.entries
            assert {each.label: each.events - each.charged for each in handle.reservations() if not each.released} == {
                label: len(plan) for label, plan in self.plans.items() if label not in self.given_back
            }
            assert all(handle.paid(key) for key in self.keys)
        (known,) = self.home.ledgers()
        assert (known.path, known.mark) == (self.path, self.handles[0].mark)
        report = verify(self.path)
        assert (report["intact"], report["events"]) == (True, len(self.spent))


@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_any_sequence_of_calls_is_answered_as_the_model_would(examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=checks),
    )
