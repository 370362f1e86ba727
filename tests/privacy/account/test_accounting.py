import math
from collections.abc import Callable

import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incrowd.errors import AccountingError, ConfigError, UnpricedEvent
from incrowd.privacy.account import accounting
from incrowd.privacy.account.accounting import (
    Budget,
    Relation,
    RenyiCurve,
    delta_at,
    first_bound,
    plainly_within,
    price,
)
from incrowd.privacy.account.events import PureDpEvent, compose


@pytest.fixture(autouse=True)
def _nothing_computed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_computed", {})


ADD_OR_REMOVE, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def poisson(sampling_prob: float, noise_multiplier: float) -> DpEvent:
    return PoissonSampledDpEvent(sampling_prob, GaussianDpEvent(noise_multiplier))


def fixed_size(clients: int, cohort: int, noise_multiplier: float) -> DpEvent:
    return SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(noise_multiplier))


ROUNDS = SelfComposedDpEvent(poisson(0.22, 1.25), 54)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, "8", True])
def test_a_budget_needs_a_finite_epsilon_above_zero(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        Budget(epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_a_budget_needs_a_delta_strictly_between_zero_and_one(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        Budget(epsilon=1.0, delta=delta)


@pytest.mark.slow
def test_the_tighter_accountant_is_taken() -> None:
    found = price(ROUNDS, delta=1e-5, relation=ADD_OR_REMOVE)
    assert found.accountant == "PLD"
    assert found.epsilon == found.by_accountant["PLD"] < found.by_accountant["RDP"]
    assert found.by_accountant["PLD"] == pytest.approx(PLDAccountant().compose(ROUNDS).get_epsilon(1e-5), rel=1e-8)
    assert found.by_accountant["RDP"] == pytest.approx(RdpAccountant().compose(ROUNDS).get_epsilon(1e-5), rel=1e-12)
    # Where the grid proves nothing, the other accountant is the tighter one.
    tiny = price(ROUNDS, delta=1e-15, relation=ADD_OR_REMOVE)
    assert tiny.accountant == "RDP"
    assert tiny.by_accountant["PLD"] == math.inf


def test_nothing_costs_nothing() -> None:
    for accountant in ("GDP", "PLD", "RDP"):
        for event in (NoOpDpEvent(), ComposedDpEvent([]), SelfComposedDpEvent(NoOpDpEvent(), 9)):
            assert price(event, delta=1e-9, relation=REPLACE, accountants=[accountant]).epsilon == 0
            assert delta_at(event, epsilon=0.0, relation=REPLACE, accountants=[accountant]) == 0


def test_delta_at_is_the_inverse_of_price() -> None:
    epsilon = price(ROUNDS, delta=1e-5, relation=ADD_OR_REMOVE).epsilon
    assert delta_at(ROUNDS, epsilon=epsilon, relation=ADD_OR_REMOVE) == pytest.approx(1e-5, rel=1e-6)
    assert delta_at(ROUNDS, epsilon=epsilon + 1, relation=ADD_OR_REMOVE) < 1e-5
    assert delta_at(GaussianDpEvent(1e-9), epsilon=1.0, relation=ADD_OR_REMOVE) == 1
    distance = math.erf(1 / (2 * 2.0) / math.sqrt(2))  # the total variation distance
    assert delta_at(GaussianDpEvent(2.0), epsilon=0, relation=ADD_OR_REMOVE) == pytest.approx(distance, rel=1e-9)


# dp_accounting's PLD counts randomized response once, however often it is composed: not admitted.
@pytest.mark.parametrize("unknown", [NonPrivateDpEvent(), RandomizedResponseDpEvent(0.5, 2)])
@pytest.mark.parametrize("nest", [lambda event: event, lambda event: ComposedDpEvent([ROUNDS, event])])
def test_an_unknown_event_is_refused(unknown: DpEvent, nest: Callable[[DpEvent], DpEvent]) -> None:
    event = nest(unknown)
    for relation in Relation:
        with pytest.raises(UnpricedEvent):
            price(event, delta=1e-5, relation=relation)
        with pytest.raises(UnpricedEvent):
            delta_at(event, epsilon=1.0, relation=relation)


def test_randomized_response_shows_why_n_fold_is_tested() -> None:
    once = RandomizedResponseDpEvent(0.5, 2)
    thrice = PLDAccountant(REPLACE).compose(SelfComposedDpEvent(once, 3))
    assert thrice.get_epsilon(1e-9) == PLDAccountant(REPLACE).compose(once).get_epsilon(1e-9)


@pytest.mark.parametrize(
    ("event", "accountants"),
    [
        (PoissonSampledDpEvent(0.5, poisson(0.5, 1.0)), ("GDP", "PLD", "RDP")),
        (ROUNDS, ("GDP",)),
        (GaussianDpEvent(1.0), ()),
    ],
)
def test_what_none_of_the_accountants_supports_is_refused(event: DpEvent, accountants: tuple[str, ...]) -> None:
    for asked in (price, first_bound):
        with pytest.raises(UnpricedEvent, match="none of"):
            asked(event, delta=1e-5, relation=ADD_OR_REMOVE, accountants=accountants)


@pytest.mark.parametrize("sample", [poisson(0.5, 1.0), fixed_size(10, 5, 1.0)])
def test_a_sample_goes_with_its_own_relation_only(sample: DpEvent) -> None:
    fits = {REPLACE} if isinstance(sample, SampledWithoutReplacementDpEvent) else set(Relation) - {REPLACE}
    for event in (sample, ComposedDpEvent([LaplaceDpEvent(1.0), sample])):
        for relation in Relation:
            if relation in fits:
                assert price(event, delta=1e-5, relation=relation, grid=1e-2).epsilon > 0
            else:
                with pytest.raises(UnpricedEvent, match=f"not under {relation.name}"):
                    price(event, delta=1e-5, relation=relation)
    both = ComposedDpEvent([poisson(0.5, 1.0), fixed_size(10, 5, 1.0)])
    for relation in Relation:
        with pytest.raises(UnpricedEvent, match="has a price under"):
            price(both, delta=1e-5, relation=relation)


def test_a_delta_of_zero_has_a_price_where_every_loss_is_bounded() -> None:
    once = LaplaceDpEvent(1 / math.log(3))
    for delta in (0.0, 1e-9):
        for asked in (1, 5):
            found = price(SelfComposedDpEvent(once, asked), delta=delta, relation=REPLACE)
            assert found.accountant == "PLD"
            assert found.epsilon == pytest.approx(asked * math.log(3), rel=1e-6)
            bound = first_bound(SelfComposedDpEvent(once, asked), delta=delta, relation=REPLACE)
            assert bound == ("PLD", found.epsilon)
    assert price(ROUNDS, delta=0.0, relation=ADD_OR_REMOVE).epsilon == math.inf
    assert price(GaussianDpEvent(1.0), delta=0.0, relation=ADD_OR_REMOVE).epsilon == math.inf
    assert price(NoOpDpEvent(), delta=0.0, relation=REPLACE).epsilon == 0
    assert delta_at(once, epsilon=1.1, relation=REPLACE) == 0 < delta_at(once, epsilon=1.09, relation=REPLACE)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("delta", -1e-9),
        ("delta", math.nan),
        ("delta", 1.0),
        ("grid", 0.0),
        ("grid", math.nan),
        ("accountants", ("GDP", "gdp")),
        ("accountants", "PLD"),
        ("relation", "ADD_OR_REMOVE_ONE"),
    ],
)
def test_wrong_settings_are_refused_by_name(field: str, wrong: object) -> None:
    settings: dict[str, object] = {"delta": 1e-5, "relation": ADD_OR_REMOVE} | {field: wrong}
    with pytest.raises(ConfigError, match=field):
        price(ROUNDS, **settings)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match="epsilon"):
        delta_at(ROUNDS, epsilon=-1.0, relation=ADD_OR_REMOVE)


@pytest.mark.parametrize(
    "failure", [ValueError("no"), MemoryError(), OverflowError(), ZeroDivisionError(), math.nan, -1.0]
)
def test_an_accountant_that_fails_is_an_error_and_never_a_price(
    failure: Exception | float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> float:
        if isinstance(failure, Exception):
            raise failure
        return failure

    event = SelfComposedDpEvent(poisson(0.31, 2.71), 3)
    with monkeypatch.context() as patch:
        patch.setattr(PrivacyLossDistribution, "get_epsilon_for_delta", broken)
        patch.setattr(PrivacyLossDistribution, "get_delta_for_epsilon", broken)
        for ask in (
            lambda: price(event, delta=1e-5, relation=ADD_OR_REMOVE),
            lambda: delta_at(event, epsilon=1.0, relation=ADD_OR_REMOVE),
            lambda: first_bound(event, delta=1e-5, relation=ADD_OR_REMOVE),
        ):
            with pytest.raises(AccountingError, match="PLD"):
                ask()
    assert price(event, delta=1e-5, relation=ADD_OR_REMOVE).epsilon > 0


def test_the_first_bound_is_the_first_finite_one() -> None:
    def bound(event: DpEvent, delta: float, accountants: tuple[str, ...] = ("RDP", "PLD", "GDP")) -> tuple[str, float]:
        return first_bound(event, delta=delta, relation=ADD_OR_REMOVE, accountants=accountants, grid=1e-3)

    assert bound(GaussianDpEvent(1.0), 1e-5)[0] == "GDP"
    assert bound(ROUNDS, 1e-5) == ("PLD", price(ROUNDS, delta=1e-5, relation=ADD_OR_REMOVE, grid=1e-3).epsilon)
    assert bound(ROUNDS, 1e-15) == ("RDP", price(ROUNDS, delta=1e-15, relation=ADD_OR_REMOVE, grid=1e-3).epsilon)
    assert bound(ROUNDS, 1e-15, ("PLD",)) == ("PLD", math.inf)


def test_prices_are_told_apart_by_everything_that_they_depend_on() -> None:
    prices = {
        price(event, delta=delta, relation=relation, grid=grid, accountants=accountants).epsilon
        for event in (ROUNDS, SelfComposedDpEvent(poisson(0.22, 1.25), 55))
        for delta in (1e-5, 1e-6)
        for relation in (ADD_OR_REMOVE, Relation.REPLACE_SPECIAL)
        for grid in (1e-3, 1e-2)
        for accountants in (("PLD",), ("RDP",))
        for _ in range(2)
    }
    assert len(prices) == 2 * 2 * (2 + 1)  # the two relations agree, and RDP has no grid
    assert 0 < delta_at(ROUNDS, epsilon=1e-5, relation=ADD_OR_REMOVE, grid=1e-3) < 1


def test_a_price_is_computed_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_MOST_COMPUTED", 3)
    asked, epsilon = [], RenyiCurve.epsilon

    def counted(curve: RenyiCurve, delta: float) -> float:
        asked.append(delta)
        return epsilon(curve, delta)

    monkeypatch.setattr(RenyiCurve, "epsilon", counted)
    for count in (1, 1, 2, 3, 3, 4, 1):
        event = SelfComposedDpEvent(poisson(0.22, 1.25), count)
        price(event, delta=1e-5, relation=ADD_OR_REMOVE, accountants=("RDP",))
    assert len(asked) == 5


RUNS = st.lists(
    st.tuples(
        st.one_of(st.floats(0.05, 100).map(LaplaceDpEvent), st.floats(0.01, 20).map(PureDpEvent)),
        st.integers(1, 200),
    ),
    min_size=1,
    max_size=3,
)


def tight(runs: list[tuple[DpEvent, int]], delta: float) -> float:
    return price(compose(runs), delta=delta, relation=REPLACE).epsilon


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
