import math

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, NoOpDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import ComposedDpEvent, SampledWithoutReplacementDpEvent
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import ConfigError, UnpricedEvent
from incrowd.privacy.account.accounting import Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.account.opacus_history import event_from_history, history_from_event, runs_from_history

HISTORY = [(1.1, 0.01, 300), (0.8, 0.02, 40), (1.1, 0.01, 5)]
ENTRIES = st.tuples(st.floats(0.1, 10), st.floats(1e-6, 1), st.integers(1, 10_000))


def test_steps_become_gaussians_on_poisson_samples() -> None:
    assert runs_from_history(HISTORY[:2]) == (
        (PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 300),
        (PoissonSampledDpEvent(0.02, GaussianDpEvent(0.8)), 40),
    )
    assert runs_from_history([[2, 1, 3]]) == ((GaussianDpEvent(2.0), 3),)
    assert event_from_history(HISTORY) == compose(runs_from_history(HISTORY))
    assert event_from_history([]) == NoOpDpEvent()


@given(st.lists(ENTRIES, max_size=5, unique_by=lambda entry: entry[:2]))
def test_a_history_survives_the_way_to_events_and_back(history: list[tuple[float, float, int]]) -> None:
    sampled = [entry for entry in history if entry[1] < 1]
    assert sorted(history_from_event(event_from_history(sampled))) == sorted(sampled)


def test_equal_steps_are_counted_together_and_plain_gaussians_become_one() -> None:
    event = event_from_history([*HISTORY, (2.0, 1.0, 4)])
    assert sorted(history_from_event(event)) == [(0.8, 0.02, 40), (1.0, 1.0, 1), (1.1, 0.01, 305)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((0, 0.1, 1), "noise_multiplier = 0"),
        ((math.nan, 0.1, 1), "noise_multiplier = nan"),
        ((1.0, 0, 1), "sample_rate = 0"),
        ((1.0, 1.5, 1), "sample_rate = 1.5"),
        ((1.0, 0.1, 0), "steps = 0"),
        ((1.0, 0.1, 2.5), "steps = 2.5"),
        ((1.0, 0.1), "history = "),
        (7, "history = 7"),
    ],
)
def test_what_is_no_history_is_refused(entry: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        runs_from_history([entry])  # type: ignore[list-item]  # that is the point


@pytest.mark.parametrize(
    "event",
    [
        LaplaceDpEvent(1.0),
        SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0)),
        PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)),
        ComposedDpEvent([GaussianDpEvent(1.0), LaplaceDpEvent(1.0)]),
    ],
)
def test_what_no_history_can_say_is_refused(event: DpEvent) -> None:
    with pytest.raises(UnpricedEvent, match="Gaussian noise on Poisson samples only"):
        history_from_event(event)


def test_nothing_is_an_empty_history() -> None:
    assert history_from_event(NoOpDpEvent()) == []


@pytest.mark.slow
def test_opacus_accountants_say_what_ours_say() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    event = event_from_history(HISTORY)
    ours = price(event, delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE, accountants=("PLD", "RDP")).by_accountant
    for make, name, apart in ((accountants.RDPAccountant, "RDP", 0.02), (accountants.PRVAccountant, "PLD", 0.03)):
        theirs = make()
        theirs.load_state_dict({"history": history_from_event(event), "mechanism": theirs.mechanism()})
        assert theirs.get_epsilon(delta=1e-5) == pytest.approx(ours[name], rel=apart)
