"""Attack: whoever can write a folder of stored numbers states the price of what a ledger is asked to allow.

No folder is asked: a price, and the noise that a budget needs, are computed in the process that decides.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from incrowd.errors import BudgetExceeded
from incrowd.privacy.account import accounting
from incrowd.privacy.account.accounting import Budget, Price, Relation, price, smallest_noise
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.ledger import Ledger

RELATION = Relation.ADD_OR_REMOVE_ONE
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def rounds(noise: float) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(0.3, GaussianDpEvent(noise)), 5)


DEAR = rounds(0.7)


class TrustingLedger(Ledger):
    """The broken twin: it decides by a number that was stored."""

    stored: Path

    def price(self, runs: Sequence[RepeatedEvent]) -> Price:
        if not self.stored.exists():
            self.stored.write_text(str(super().price(runs).epsilon))
        return Price(epsilon=float(self.stored.read_text()), accountant="stored", by_accountant={})


@pytest.mark.parametrize(("kind", "falls"), [(Ledger, False), (TrustingLedger, True)], ids=["ours", "twin"])
def test_a_stored_number_lets_a_ledger_accept_what_is_too_dear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Ledger], falls: bool
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "INCROWD_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(TrustingLedger, "stored", tmp_path / "price", raising=False)
    with kind.in_memory(budget=Budget(epsilon=1e4, delta=BUDGET.delta), relation=RELATION) as rich:
        rich.charge(DEAR)
    for path in tmp_path.rglob("*"):
        path.write_text("0.001")  # the forgery: whatever was stored says next to nothing
    monkeypatch.setattr(accounting, "_computed", {})  # another process
    with kind.in_memory(budget=BUDGET, relation=RELATION) as ledger:
        if falls:
            ledger.charge(DEAR)
        else:
            with pytest.raises(BudgetExceeded):
                ledger.charge(DEAR)


@contextmanager
def files_opened() -> Iterator[list[str]]:
    """The files that are opened meanwhile, whoever opens them, but for code that is imported."""
    found: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and not str(arguments[0]).endswith((".pyc", ".so")):
            found.append(str(arguments[0]))

    sys.addaudithook(hook)  # which stays, and is silent afterwards
    try:
        yield found
    finally:
        watching = False


def ask_everything() -> None:
    price(DEAR, delta=1e-5, relation=RELATION)
    smallest_noise(rounds, budget=BUDGET, relation=RELATION)


def ask_a_folder() -> None:
    """The broken twin."""
    ask_everything()
    Path(__file__).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("ask", "opened"), [(ask_everything, 0), (ask_a_folder, 1)], ids=["ours", "twin"])
def test_a_price_is_read_from_a_file(ask: Callable[[], None], opened: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_everything()  # whatever is imported late is imported now
    monkeypatch.setattr(accounting, "_computed", {})
    with files_opened() as found:
        ask()
    assert len(found) == opened
