from collections.abc import Callable
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger import ledger as module
from incrowd.privacy.ledger.ledger import Ledger
from tests.privacy.ledgers import EVENT, FITS, SMALL


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


def test_commitments_are_all_that_was_charged_or_is_reserved(ledger: Ledger) -> None:
    assert ledger.commitments() == ()
    ledger.reserve([(SMALL, 2), (EVENT, 1)], label="run")
    ledger.charge(SMALL)
    ledger.charge(SMALL, reservation="run")
    assert sorted(ledger.commitments(), key=str) == sorted([(SMALL, 3), (EVENT, 1)], key=str)
    ledger.release_reservation("run")
    assert ledger.commitments() == ((SMALL, 2),)


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
def test_runs_without_events_are_refused(ledger: Ledger, runs: list[RepeatedEvent]) -> None:
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
