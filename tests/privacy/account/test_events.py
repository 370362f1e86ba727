import json
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
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from incrowd.errors import BudgetExceeded, ConfigError, UnpricedEvent
from incrowd.privacy.account.accounting import Budget, Relation, first_bound, price
from incrowd.privacy.account.calibrate import LEAST_NOISE, most_rounds, smallest_noise
from incrowd.privacy.account.events import PureDpEvent, canonical, compose, event_from_json, event_to_json, mechanisms

noises = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
probs = st.floats(min_value=0, max_value=1, exclude_min=True)
counts = st.integers(min_value=1, max_value=10**6)


def wrapped(inner: st.SearchStrategy[DpEvent]) -> st.SearchStrategy[DpEvent]:
    cohorts = st.tuples(counts, counts).map(sorted)
    return st.one_of(
        st.builds(PoissonSampledDpEvent, probs, inner),
        st.builds(lambda sizes, event: SampledWithoutReplacementDpEvent(sizes[1], sizes[0], event), cohorts, inner),
        st.builds(SelfComposedDpEvent, inner, counts),
        st.builds(ComposedDpEvent, st.lists(inner, max_size=3)),
    )


events = st.recursive(
    st.one_of(
        st.just(NoOpDpEvent()),
        st.builds(GaussianDpEvent, noises),
        st.builds(LaplaceDpEvent, noises),
        st.builds(PureDpEvent, noises),
    ),
    wrapped,
    max_leaves=5,
)


@given(events)
def test_json_gives_back_an_equal_event_to_the_last_bit(event: DpEvent) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event), allow_nan=False))) == event


@given(events, events)
def test_the_canonical_json_is_equal_exactly_when_events_are(one: DpEvent, other: DpEvent) -> None:
    assert canonical(event_from_json(event_to_json(one))) == canonical(one)
    assert (canonical(one) == canonical(other)) == (one == other)
    written = '{"event":{"kind":"gaussian","noise_multiplier":2.0},"kind":"poisson_sampled","sampling_prob":0.1}'
    assert canonical(PoissonSampledDpEvent(0.1, GaussianDpEvent(2))) == written


nestings: list[Callable[[DpEvent], DpEvent]] = [
    lambda event: event,
    lambda event: PoissonSampledDpEvent(0.5, event),
    lambda event: SampledWithoutReplacementDpEvent(10, 5, event),
    lambda event: SelfComposedDpEvent(event, 2),
    lambda event: ComposedDpEvent([GaussianDpEvent(1.0), event]),
]


@pytest.mark.parametrize("nest", nestings)
def test_an_unknown_kind_is_refused_at_every_depth(nest: Callable[[DpEvent], DpEvent]) -> None:
    class Surprise(GaussianDpEvent):  # type: ignore[misc]  # its base has no types
        pass

    for unknown in (NonPrivateDpEvent(), Surprise(1.0), "gaussian"):
        for refused in (event_to_json, canonical, mechanisms, lambda event: mechanisms(nestings[1](event))):
            with pytest.raises(UnpricedEvent, match="not a kind of event known here"):
                refused(nest(unknown))


@pytest.mark.parametrize("nest", nestings)
@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf, "1", True, None])
def test_impossible_numbers_are_refused_at_every_depth(nest: Callable[[DpEvent], DpEvent], noise: object) -> None:
    with pytest.raises(ConfigError, match="noise_multiplier"):
        event_to_json(nest(GaussianDpEvent(noise)))


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampledDpEvent(0.0, NoOpDpEvent()),
        PoissonSampledDpEvent(1.1, NoOpDpEvent()),
        SampledWithoutReplacementDpEvent(10, 11, NoOpDpEvent()),
        SampledWithoutReplacementDpEvent(10, 0, NoOpDpEvent()),
        SelfComposedDpEvent(NoOpDpEvent(), 1.0),
    ],
)
def test_other_impossible_numbers_are_refused(event: DpEvent) -> None:
    with pytest.raises(ConfigError):
        event_to_json(event)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "gaussian",
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "clip_norm": 1.0},
        {"kind": "gaussian", "noise_multiplier": "1"},
        {"kind": "gaussian", "noise_multiplier": 10**400},
        {"kind": "poisson_sampled", "sampling_prob": 0.5, "event": None},
        {"kind": "sampled_without_replacement", "clients": 5, "cohort": 6, "event": {"kind": "nothing"}},
        {"kind": "composed", "events": {"kind": "nothing"}},
    ],
)
def test_malformed_json_is_refused(broken: object) -> None:
    with pytest.raises(ConfigError):
        event_from_json(broken)


def test_json_too_deep_to_follow_is_refused() -> None:
    deep: dict[str, object] = {"kind": "nothing"}
    for _ in range(100_000):
        deep = {"kind": "repeated", "count": 1, "event": deep}
    with pytest.raises(ConfigError, match="RecursionError"):
        event_from_json(deep)
    while deep.get("event"):  # taken apart by hand: the interpreter would go as deep to free it
        deep = deep.pop("event")  # type: ignore[assignment]  # events nest in events


@pytest.mark.parametrize("unknown", [{}, {"kind": "exponential"}, {"kind": None}, {"kind": ["gaussian"]}])
def test_json_of_an_unknown_kind_is_refused(unknown: object) -> None:
    for nested in (unknown, {"kind": "composed", "events": [{"kind": "nothing"}, unknown]}):
        with pytest.raises(UnpricedEvent):
            event_from_json(nested)


def test_equal_neighbours_are_merged() -> None:
    one, other = GaussianDpEvent(1.0), GaussianDpEvent(2.0)
    runs = [(one, 1), (SelfComposedDpEvent(one, 3), 2), (NoOpDpEvent(), 5), (one, 1), (other, 1), (one, 1)]
    assert compose(runs) == ComposedDpEvent([SelfComposedDpEvent(one, 8), other, one])


def test_composing_nothing_or_one() -> None:
    assert compose([]) == NoOpDpEvent()
    assert compose([(NoOpDpEvent(), 3)]) == NoOpDpEvent()
    assert compose([(GaussianDpEvent(1.0), 1)]) == GaussianDpEvent(1.0)
    assert compose([(GaussianDpEvent(1.0), 4)]) == SelfComposedDpEvent(GaussianDpEvent(1.0), 4)
    with pytest.raises(ConfigError, match="count"):
        compose([(GaussianDpEvent(1.0), 0)])


def poisson(sampling_prob: float, *noise_multipliers: float) -> DpEvent:
    return PoissonSampledDpEvent(sampling_prob, compose([(GaussianDpEvent(z), 1) for z in noise_multipliers]))


def test_equal_mechanisms_are_counted_together_wherever_they_stood() -> None:
    a, b = poisson(0.1, 1.0), LaplaceDpEvent(2.0)
    event = ComposedDpEvent([a, SelfComposedDpEvent(ComposedDpEvent([b, SelfComposedDpEvent(a, 2)]), 3), NoOpDpEvent()])
    assert sorted(mechanisms(event), key=str) == [(b, 3), (a, 7)]
    assert mechanisms(ComposedDpEvent([b, a])) == mechanisms(ComposedDpEvent([a, b]))


def test_gaussians_become_the_one_that_they_jointly_are() -> None:
    event = ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(2.0), 3), GaussianDpEvent(1.0)])
    ((joint, count),) = mechanisms(event)
    assert count == 1
    assert joint.noise_multiplier == pytest.approx((3 / 4 + 1) ** -0.5, rel=1e-15)
    ((sampled, count),) = mechanisms(SelfComposedDpEvent(PoissonSampledDpEvent(0.5, event), 4))
    assert count == 4
    assert sampled == PoissonSampledDpEvent(0.5, joint)
    for alone in (GaussianDpEvent(1.1), poisson(0.1, 1.1), poisson(0.999, 1.0)):
        assert mechanisms(alone) == ((alone, 1),)


def test_a_sample_of_everyone_is_no_sample_and_of_nothing_is_nothing() -> None:
    everyone = SampledWithoutReplacementDpEvent(10, 10, GaussianDpEvent(1.0))
    assert mechanisms(poisson(1.0, 1.0)) == mechanisms(everyone) == ((GaussianDpEvent(1.0), 1),)
    assert mechanisms(poisson(0.5)) == mechanisms(NoOpDpEvent()) == mechanisms(ComposedDpEvent([])) == ()


# Calibration


ADD_OR_REMOVE, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
BUDGET = Budget(epsilon=8.0, delta=1e-5)


def rounds(sampling_prob: float, noise_multiplier: float, count: int) -> DpEvent:
    return SelfComposedDpEvent(poisson(sampling_prob, noise_multiplier), count)


def fixed_size(clients: int, cohort: int, noise_multiplier: float, count: int) -> DpEvent:
    once = SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(noise_multiplier))
    return SelfComposedDpEvent(once, count)


def schedule(factor: float) -> DpEvent:
    """Growing cohorts and noise at a constant ratio of noise variance to cohort."""
    steps = [(0.05 * step, factor * math.sqrt(step)) for step in range(1, 4)]
    return ComposedDpEvent([rounds(sampling_prob, noise, 4) for sampling_prob, noise in steps])


# Every way of adding noise, its relation and a budget.
NOISES: dict[str, tuple[Callable[[float], DpEvent], Relation, Budget]] = {
    "everyone": (lambda z: SelfComposedDpEvent(GaussianDpEvent(z), 54), ADD_OR_REMOVE, BUDGET),
    "Poisson": (lambda z: rounds(0.22, z, 54), ADD_OR_REMOVE, BUDGET),
    "Poisson, zeroed out": (lambda z: rounds(0.22, z, 54), Relation.REPLACE_SPECIAL, BUDGET),
    "Poisson, many rounds": (lambda z: rounds(0.05, z, 1000), ADD_OR_REMOVE, Budget(epsilon=0.3, delta=1e-6)),
    "fixed size": (lambda z: fixed_size(1000, 220, z, 54), REPLACE, BUDGET),
    "schedule": (schedule, ADD_OR_REMOVE, Budget(epsilon=1.0, delta=1e-5)),
    "Laplace": (lambda z: SelfComposedDpEvent(LaplaceDpEvent(z), 20), ADD_OR_REMOVE, BUDGET),
    "partly fixed": (lambda z: ComposedDpEvent([LaplaceDpEvent(0.15), poisson(0.5, z)]), ADD_OR_REMOVE, BUDGET),
    "below RDP's and above PLD's reach": (lambda z: rounds(0.2, z, 9), ADD_OR_REMOVE, Budget(epsilon=4.0, delta=1e-15)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "relation", "budget"), NOISES.values(), ids=NOISES.keys())
def test_the_noise_keeps_to_the_budget_and_a_ten_thousandth_less_would_not(
    make: Callable[[float], DpEvent], relation: Relation, budget: Budget
) -> None:
    noise = smallest_noise(make, budget=budget, relation=relation)
    assert price(make(noise), delta=budget.delta, relation=relation).epsilon <= budget.epsilon
    assert first_bound(make(noise * (1 - 1e-4)), delta=budget.delta, relation=relation)[1] > budget.epsilon


@settings(max_examples=50)
@given(epsilon=st.floats(1e-3, 50), delta=st.floats(1e-10, 0.1), count=st.integers(1, 10**5))
def test_the_noise_of_everyone_is_the_analytic_one(epsilon: float, delta: float, count: int) -> None:
    """mu = sqrt(count) / noise solves Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) = delta."""
    budget = Budget(epsilon=epsilon, delta=delta)
    noise = smallest_noise(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), count), budget=budget, relation=REPLACE)

    def delta_of(factor: float) -> float:
        mu = math.sqrt(count) / (noise * factor)
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))

    assert delta_of(1.0) <= delta * (1 + 1e-7)
    assert delta_of(1 - 1e-5) > delta or noise == LEAST_NOISE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "relation"),
    [
        (lambda count: rounds(0.22, 1.25, count), ADD_OR_REMOVE),
        (lambda count: SelfComposedDpEvent(GaussianDpEvent(300.0), count), ADD_OR_REMOVE),
        (lambda count: fixed_size(1000, 10, 1.0, count), REPLACE),
        (lambda count: ComposedDpEvent([GaussianDpEvent(1.0), rounds(0.2, 2.0, count)]), ADD_OR_REMOVE),
    ],
)
def test_one_more_round_would_not_keep_to_the_budget(make: Callable[[int], DpEvent], relation: Relation) -> None:
    count = most_rounds(make, budget=BUDGET, relation=relation)
    assert isinstance(count, int)
    assert price(make(count), delta=1e-5, relation=relation).epsilon <= 8
    assert first_bound(make(count + 1), delta=1e-5, relation=relation)[1] > 8


def test_what_no_value_can_reach_exceeds_the_budget() -> None:
    spent = LaplaceDpEvent(0.1)
    with pytest.raises(BudgetExceeded, match=r"noise of 1e\+09 .* costs epsilon = 10 .* budget is 8"):
        smallest_noise(lambda z: ComposedDpEvent([spent, poisson(0.1, z)]), budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(BudgetExceeded, match="one round"):
        most_rounds(lambda n: rounds(1.0, 0.3, n), budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(BudgetExceeded, match="one client"):
        most_rounds(lambda m: rounds(m / 2, 1.0, 20), most=2, one="one client", budget=BUDGET, relation=ADD_OR_REMOVE)
