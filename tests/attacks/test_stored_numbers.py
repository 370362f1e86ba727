"""Attack: whoever can write the folder of stored numbers states the price of what a ledger is asked to allow."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account import accounting, hints
from incrowd.privacy.account.accounting import Budget, Price, Relation
from incrowd.privacy.account.calibration import smallest_noise
from incrowd.privacy.account.events import Run, canonical, compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.schedule import Schedule, Step

RELATION = Relation.ADD_OR_REMOVE_ONE
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def rounds(noise: float) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(0.3, GaussianDpEvent(noise)), 5)


DEAR = rounds(0.7)


class TrustingLedger(Ledger):
    """The broken twin: it decides by a number that was stored."""

    def _price(self, runs: Sequence[Run]) -> Price:
        question = [canonical(compose(runs)), self.budget.delta]
        kept = hints.recall(question)
        found = super()._price(runs) if kept is None else Price(epsilon=kept, accountant="stored", by_accountant={})
        hints.keep(question, found.epsilon)
        return found


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Write another number into every stored file, checksum and all, as the same user could; and start anew."""
    monkeypatch.setenv("INCROWD_CACHE", str(tmp_path))

    def forge() -> None:
        for path in tmp_path.iterdir():
            key = json.loads(path.read_text())["key"]
            path.write_text(json.dumps(hints._entry(key, 0.001)))
        monkeypatch.setattr(accounting, "_computed", {})

    return forge


@pytest.mark.parametrize(("kind", "falls"), [(Ledger, False), (TrustingLedger, True)], ids=["ours", "twin"])
def test_a_stored_number_lets_a_ledger_accept_what_is_too_dear(
    forge: Callable[[], None], kind: type[Ledger], falls: bool
) -> None:
    with kind.in_memory(budget=Budget(epsilon=1e4, delta=BUDGET.delta), relation=RELATION) as rich:
        rich.charge(DEAR)
    forge()
    with kind.in_memory(budget=BUDGET, relation=RELATION) as ledger:
        if falls:
            ledger.charge(DEAR)
        else:
            with pytest.raises(BudgetExceeded):
                ledger.charge(DEAR)


def least_noise() -> float:
    return smallest_noise(rounds, budget=BUDGET, relation=RELATION)


def trusting_noise() -> float:
    """The broken twin: a search that takes the stored number for its answer."""
    kept = hints.recall("noise")
    found = least_noise() if kept is None else kept
    hints.keep("noise", found)
    return found


@pytest.mark.parametrize(("search", "falls"), [(least_noise, False), (trusting_noise, True)], ids=["ours", "twin"])
def test_a_stored_number_lets_a_plan_take_too_little_noise(
    forge: Callable[[], None], search: Callable[[], float], falls: bool
) -> None:
    honest = search()
    forge()
    assert (search() == honest) != falls


def test_a_stored_number_lets_a_plan_state_too_low_a_price(forge: Callable[[], None]) -> None:
    config = PlanConfig(clients=10, schedule=Schedule((Step(rounds=5, cohort=3, noise_multiplier=0.7),)))
    honest = config.plan(Budget(epsilon=1e4, delta=1e-5)).price.epsilon
    forge()
    with pytest.raises(ConfigError, match=f"cost {honest:.6g}"):
        config.plan(BUDGET)


@pytest.mark.parametrize("whose", ["folder", "parent", "file"])
def test_a_folder_of_another_user_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_away: Callable[[Path], None], whose: str
) -> None:
    folder = tmp_path / "theirs" / "cache"
    monkeypatch.setenv("INCROWD_CACHE", str(folder))
    hints.keep("question", 5.0)
    (file,) = folder.iterdir()
    assert hints.recall("question") == 5.0  # the control: the very same files, while they are ours
    given_away({"folder": folder, "parent": folder.parent, "file": file}[whose])
    assert hints.recall("question") is None
