import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
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
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf  # type: ignore[import-untyped]  # it ships no types

from incrowd.errors import AccountingError, ConfigError, UnpricedEvent
from incrowd.privacy.account import accounting
from incrowd.privacy.account.accounting import (
    ORDERS,
    Budget,
    Curve,
    GaussianCurve,
    LossDistributionCurve,
    Relation,
    RenyiCurve,
    delta_at,
    first_bound,
    price,
    quickly_within,
)
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent, compose, mechanisms


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
        (PoissonSampledDpEvent(0.5, LaplaceDpEvent(1.0)), ("GDP", "PLD", "RDP")),
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
    assert price(PureDpEvent(0.5), delta=0.0, relation=REPLACE).epsilon == 0.5
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
    events, relations = (
        (ROUNDS, SelfComposedDpEvent(poisson(0.22, 1.25), 55)),
        (ADD_OR_REMOVE, Relation.REPLACE_SPECIAL),
    )
    prices = {
        price(event, delta=delta, relation=relation, grid=grid, accountants=(accountant,)).epsilon
        for event, delta, relation, grid, accountant, _ in product(
            events, (1e-5, 1e-6), relations, (1e-3, 1e-2), ("PLD", "RDP"), range(2)
        )
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
        st.one_of(st.floats(0.05, 100).map(LaplaceDpEvent), st.floats(0.01, 20).map(PureDpEvent)), st.integers(1, 200)
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
@example([(fixed_size(50, 1, 1.1), 100)], 8.0, 1e-5)
def test_what_is_quickly_within_a_budget_is_within_it(
    runs: list[tuple[DpEvent, int]], epsilon: float, delta: float
) -> None:
    """The tight price agrees, to within the width of its own grid."""
    if quickly_within(runs, Budget(epsilon=epsilon, delta=delta), REPLACE):
        assert tight(runs, delta) <= epsilon * 1.001 + 1e-3


def test_what_is_quickly_within_a_budget_needs_no_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "LossDistributionCurve", None)
    sampled, pure = poisson(0.02, 1.1), PureDpEvent(0.01)
    for event, count in ((GaussianDpEvent(30.0), 10), (sampled, 100), (pure, 100), (LaplaceDpEvent(100.0), 100)):
        for epsilon, answer in ((9.0, True), (0.3, False)):
            assert quickly_within([(event, count)], Budget(epsilon=epsilon, delta=1e-5), ADD_OR_REMOVE) is answer
    unpriced = ([(sampled, 1), (pure, 1)], ADD_OR_REMOVE), ([(sampled, 1)], REPLACE)
    for runs, relation in unpriced:
        assert not quickly_within(runs, Budget(epsilon=100.0, delta=1e-5), relation)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([poisson(0.02, 1.1), poisson(0.5, 0.6), fixed_size(50, 5, 2.0), LaplaceDpEvent(20.0)]),
    st.integers(1, 3000),
    st.sampled_from([poisson(0.02, 1.1), GaussianDpEvent(1000.0), GaussianDpEvent(3.0)]),
    st.integers(1, 1000),
)
def test_fewer_events_cost_a_thousandth_more_at_most(event: DpEvent, count: int, other: DpEvent, more: int) -> None:
    """A ledger takes the price of more events for a bound on that of fewer, which may be on a finer grid."""
    relation = relation_for(event)
    if relation_for(other) != relation and isinstance(other, PoissonSampledDpEvent):
        other = event
    few, many = (
        price(compose(runs), delta=1e-5, relation=relation).epsilon
        for runs in ([(event, count)], [(event, count), (other, more)])
    )
    assert few <= many * (1 + 5e-4)


# Every accountant keeps the same contract, for every event that it supports


GRID = 1e-3
DELTAS = (1e-2, 1e-5, 1e-8)


def relation_for(event: DpEvent) -> Relation:
    return Relation.REPLACE_ONE if "WithoutReplacement" in str(event) else Relation.ADD_OR_REMOVE_ONE


# Each kind of event, as a function of its noise.
KINDS: dict[str, Callable[[float], DpEvent]] = {
    "gaussian": GaussianDpEvent,
    "laplace": LaplaceDpEvent,
    "poisson gaussian": lambda noise: poisson(0.2, noise),
    "fixed size": lambda noise: SampledWithoutReplacementDpEvent(50, 10, GaussianDpEvent(noise)),
}


def curves(event: DpEvent) -> dict[str, Curve]:
    runs = mechanisms(event)
    found: dict[str, Curve] = {}
    if GaussianCurve.supports(runs):
        found["GDP"] = GaussianCurve(runs)
    if LossDistributionCurve.supports(runs):
        found["PLD"] = LossDistributionCurve(runs, GRID)
    if RenyiCurve.supports(runs):
        found["RDP"] = RenyiCurve(runs, relation_for(event))
    return found


each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


@each_kind
def test_n_fold_costs_as_much_as_n_times(make: Callable[[float], DpEvent]) -> None:
    """Not through `mechanisms`, which would count together before an accountant could get it wrong."""
    event = make(3.0)
    builders: dict[str, Callable[[Sequence[RepeatedEvent]], Curve]] = {
        "GDP": GaussianCurve,
        "PLD": lambda runs: LossDistributionCurve(runs, GRID),
        "RDP": lambda runs: RenyiCurve(runs, relation_for(event)),
    }
    for name in curves(event):
        folded, unfolded = builders[name]([(event, 5)]), builders[name]([(event, 1)] * 5)
        for delta in DELTAS:
            assert folded.epsilon(delta) == pytest.approx(unfolded.epsilon(delta), rel=1e-5)
        assert folded.delta(1.0) == pytest.approx(unfolded.delta(1.0), rel=1e-5)
        assert folded.epsilon(1e-5) > builders[name]([(event, 4)]).epsilon(1e-5)


@each_kind
def test_a_delta_of_zero_is_priced_or_proven_not_to_be(make: Callable[[float], DpEvent]) -> None:
    for name, curve in curves(SelfComposedDpEvent(make(2.0), 3)).items():
        largest = curve.epsilon(0.0)
        if name == "PLD" and "Laplace" in str(make(2.0)):
            assert curve.delta(largest) == 0 < curve.delta(largest * (1 - 1e-6))
            assert all(curve.epsilon(delta) <= largest for delta in (1e-300, 1e-17, *DELTAS))
        else:
            assert largest == math.inf


def test_pure_releases_cost_at_most_the_sum_of_their_epsilons() -> None:
    """Dwork and Roth (2014), theorem 3.16; no grid can round it up, and no rounding falls below it."""
    log3 = math.log(3)
    once = LossDistributionCurve([(LaplaceDpEvent(1 / log3), 1)], GRID)
    for delta in (0.0, 1e-300, 1e-9):
        assert once.epsilon(delta) == pytest.approx(log3, rel=1e-15)
    mixed = [(LaplaceDpEvent(z), count) for z, count in ((0.1, 1), (3.0, 7), (1e5, 10**6))]
    exact = sum(Fraction(count) / Fraction(laplace.noise_multiplier) for laplace, count in mixed)
    assert 0 <= Fraction(LossDistributionCurve(mixed, GRID).epsilon(0.0)) / exact - 1 < 2**-52
    for z in (3.0, 10.0, 1 / 3, 0.7):
        assert Fraction(LossDistributionCurve([(LaplaceDpEvent(z), 3)], GRID).epsilon(0.0)) >= 3 / Fraction(z)
    # With many of them the grid proves less than the sum.
    many = LossDistributionCurve([(LaplaceDpEvent(20.0), 400)], GRID)
    assert many.epsilon(1e-6) < 0.5 * many.epsilon(0.0)
    # Where a grid is too coarse to prove anything, the sum is still there; without any noise, nothing is.
    assert LossDistributionCurve([(LaplaceDpEvent(1e-9), 1)], GRID).epsilon(1e-5) == pytest.approx(1e9)
    assert LossDistributionCurve([(LaplaceDpEvent(1e-9), 1)], GRID).delta(2e9) == 0
    assert LossDistributionCurve([(LaplaceDpEvent(5e-324), 1)], GRID).epsilon(0.0) == math.inf
    gaussian = LossDistributionCurve([(LaplaceDpEvent(1.0), 1), (GaussianDpEvent(9.0), 1)], GRID)
    assert gaussian.epsilon(0.0) == math.inf


def binomial_delta(epsilon: float, count: int, at: float) -> float:
    """The exact curve of so many answers to yes or no, each right with the odds e^epsilon."""
    right = 1 / (1 + math.exp(-epsilon))
    chances = [math.comb(count, wrong) * right ** (count - wrong) * (1 - right) ** wrong for wrong in range(count + 1)]
    losses = [(count - 2 * wrong) * epsilon for wrong in range(count + 1)]
    return sum(p * max(0.0, 1 - math.exp(at - loss)) for p, loss in zip(chances, losses, strict=True))


@pytest.mark.parametrize("epsilon", [0.1, 0.123456, 1.0, 8.0])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_whatever_is_pure_costs_what_the_worst_of_its_kind_costs(epsilon: float, count: int) -> None:
    """Never less than the exact curve, and hardly more; noise of the same epsilon would cost less, and is no bound."""
    curve = LossDistributionCurve([(PureDpEvent(epsilon), count)], 1e-4)
    for share in (0.0, 0.3, 0.7, 0.95):
        at = share * count * epsilon
        exact = binomial_delta(epsilon, count, at)
        assert exact <= curve.delta(at) <= binomial_delta(epsilon + 3e-4, count, at) + 1e-6
    assert Fraction(curve.epsilon(0.0)) >= count * Fraction(epsilon)
    assert curve.epsilon(0.0) == pytest.approx(count * epsilon, rel=1e-15)
    laplace = LossDistributionCurve([(LaplaceDpEvent(1 / epsilon), count)], 1e-4)
    assert laplace.delta(0.95 * count * epsilon) < binomial_delta(epsilon, count, 0.95 * count * epsilon)


def gaussian_delta(mu: float, epsilon: float) -> mpf:
    """Balle and Wang 2018, theorem 8, in 60 digits."""
    with mp.workdps(60):
        mu, epsilon = mpf(mu), mpf(epsilon)
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 1.0, 3.0, 30.0, 1000.0])
def test_gdp_is_exact_and_on_the_private_side(mu: float) -> None:
    curve = GaussianCurve([(GaussianDpEvent(2 / mu), 4)])
    for delta in (0.3, 1e-2, 1e-5, 1e-12, 1e-30):
        epsilon = curve.epsilon(delta)
        assert gaussian_delta(mu, epsilon) <= delta
        if epsilon > 0:
            assert gaussian_delta(mu, epsilon * (1 - 1e-8) - 1e-10) > delta
    for epsilon in (0.0, mu * mu / 2, mu * mu / 2 + 5 * mu):
        true = gaussian_delta(mu, epsilon)
        assert true <= curve.delta(epsilon) <= true * (1 + 1e-6)


@pytest.mark.slow
def test_pld_is_above_the_exact_curve_even_where_rounding_is_as_large_as_delta() -> None:
    """dp_accounting's own figures are below it here: pessimistic rounding does not cover its Fourier transforms."""
    lowest = math.inf
    for noise, count in ((50.0, 2500), (4.4, 54), (300.0, 10**5), (1000.0, 10**6)):
        runs = [(GaussianDpEvent(noise), count)]
        exact, bound = GaussianCurve(runs), LossDistributionCurve(runs, 1e-4)
        library = PLDAccountant(value_discretization_interval=1e-4)
        library.compose(PoissonSampledDpEvent(1.0, GaussianDpEvent(noise)), count)
        for delta in (1e-5, 1e-8, 1e-10, 1e-11, 1e-12, 1e-14):
            assert bound.epsilon(delta) >= exact.epsilon(delta) * (1 - 1e-9)
            lowest = min(lowest, library.get_epsilon(delta) / exact.epsilon(delta))
        for epsilon in (1.0, 5.0, 8.0, 10.0):
            assert bound.delta(epsilon) >= exact.delta(epsilon) * (1 - 1e-8)
    assert lowest < 0.995


def test_repetition_by_ten_thousands_changes_nothing() -> None:
    noise = 400.0
    at_once = PLDAccountant(value_discretization_interval=1e-3).compose(poisson(0.9, noise), 25_000)
    curve = LossDistributionCurve([(poisson(0.9, noise), 25_000)], 1e-3)
    assert curve.epsilon(1e-5) == pytest.approx(at_once.get_epsilon(1e-5), rel=1e-5)
    even = LossDistributionCurve([(poisson(0.9, noise), 20_000)], 1e-3)
    assert even.epsilon(1e-5) < curve.epsilon(1e-5)


def test_extreme_losses_take_a_coarser_grid_or_prove_nothing() -> None:
    coarser = LossDistributionCurve([(poisson(0.1, 0.1), 3)], GRID)
    assert 150 < coarser.epsilon(1e-5) < RenyiCurve([(poisson(0.1, 0.1), 3)], Relation.ADD_OR_REMOVE_ONE).epsilon(1e-5)
    beyond = LossDistributionCurve([(poisson(0.1, 1e-4), 3)], 1e-4)
    assert beyond.epsilon(1e-5) == math.inf
    assert beyond.delta(1.0) == 1
    below_the_margin = LossDistributionCurve([(GaussianDpEvent(1000.0), 10**6)], GRID)
    assert below_the_margin.epsilon(1e-12) == math.inf


def test_a_mechanism_without_sampling_costs_the_same_under_every_relation() -> None:
    """The noise multiplier is relative to the relation's sensitivity; dp_accounting would count 2C a second time."""
    doubled = PLDAccountant(Relation.REPLACE_ONE).compose(GaussianDpEvent(2.0)).get_epsilon(1e-5)
    assert doubled > 1.9 * LossDistributionCurve([(GaussianDpEvent(2.0), 1)], 1e-4).epsilon(1e-5)
    one, other = (RenyiCurve([(GaussianDpEvent(2.0), 1)], relation) for relation in list(Relation)[:2])
    assert one.epsilon(1e-5) == other.epsilon(1e-5)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan])
def test_failed_arithmetic_is_not_taken_for_a_price_of_nothing(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """dp_accounting turns a negative or NaN divergence into epsilon = 0."""
    broken = np.full(len(ORDERS), 0.5)
    broken[7] = wrong
    assert rdp_privacy_accountant.compute_epsilon(ORDERS, broken, 1e-5)[0] == 0
    monkeypatch.setattr(rdp_privacy_accountant, "_compute_rdp_poisson_subsampled_gaussian", lambda **_: broken)
    with pytest.raises(AccountingError, match="arithmetic failed"):
        RenyiCurve([(poisson(0.123, 4.56), 1)], Relation.ADD_OR_REMOVE_ONE)
