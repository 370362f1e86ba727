import math

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import PureDpEvent, compose
from incrowd.privacy.account.plain import plainly_within

RUNS = st.lists(
    st.tuples(
        st.one_of(st.floats(0.05, 100).map(LaplaceDpEvent), st.floats(0.01, 20).map(PureDpEvent)),
        st.integers(1, 200),
    ),
    min_size=1,
    max_size=3,
)


def tight(runs: list[tuple[DpEvent, int]], delta: float) -> float:
    return price(compose(runs), delta=delta, relation=Relation.REPLACE_ONE).epsilon


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(RUNS, st.floats(0.01, 50), st.sampled_from([1e-12, 1e-9, 1e-5, 0.1]))
@example([(LaplaceDpEvent(100.0), 3650)], 4.2, 1e-9)
@example([(PureDpEvent(0.01), 3650)], 4.2, 1e-9)
def test_what_is_plainly_within_a_budget_is_within_it(
    runs: list[tuple[DpEvent, int]], epsilon: float, delta: float
) -> None:
    """The tight price agrees, to within the width of its own grid."""
    if plainly_within(runs, Budget(epsilon=epsilon, delta=delta)):
        assert tight(runs, delta) <= epsilon * 1.001 + 1e-3


def test_it_is_plain_for_most_of_a_budget() -> None:
    """So a price is asked for near its end only."""
    for runs in ([(LaplaceDpEvent(100.0), 3650)], [(PureDpEvent(2.0), 10)]):
        cost = tight(runs, 1e-9)
        assert plainly_within(runs, Budget(epsilon=1.2 * cost, delta=1e-9))
        assert not plainly_within(runs, Budget(epsilon=0.99 * cost, delta=1e-9))


def test_largest_losses_are_added_up_exactly() -> None:
    runs = [(LaplaceDpEvent(0.5), 10)]
    assert plainly_within(runs, Budget(epsilon=20.0, delta=1e-12))
    assert not plainly_within([*runs, (LaplaceDpEvent(1e9), 1)], Budget(epsilon=20.0, delta=1e-12))


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(1e3),
        PoissonSampledDpEvent(0.01, LaplaceDpEvent(1e3)),
        LaplaceDpEvent(math.nan),
        PureDpEvent(math.nan),
        PureDpEvent(math.inf),
    ],
)
def test_only_laplace_noise_and_what_is_pure_is_plain(event: DpEvent) -> None:
    assert not plainly_within([(event, 1)], Budget(epsilon=100.0, delta=1e-5))
