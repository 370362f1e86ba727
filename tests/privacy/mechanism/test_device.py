import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incrowd._random import Floats, SeededRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError
from incrowd.privacy.account.accounting import price
from incrowd.privacy.account.events import PureDpEvent
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism
from tests.privacy.receipts import paid, roomy
from tests.statistics import ks, rejects_wrong_scale

SEEDED = SeededRandomness(seed=3)
KINDS: list[dict[str, Any]] = [
    {"privacy": "feature"},
    {"privacy": "model"},
    {"privacy": "model", "bound": "norm"},
    {"privacy": "feature", "noise": "gaussian", "delta": 1e-6},
    {"privacy": "model", "noise": "gaussian", "delta": 1e-6},
    {"privacy": "model", "bound": "norm", "noise": "gaussian", "delta": 1e-6},
]


def mechanism(size: int = 20, clip: float = 0.5, epsilon: float = 2.0, **kind: Any) -> Mechanism:
    return Mechanism(size=size, clip=clip, epsilon=epsilon, **kind)


def free(of: Mechanism) -> Receipt:
    return paid(*(noise for noise, _ in of.pays_for), randomness=SEEDED)


def earnest(of: Mechanism) -> Receipt:
    return roomy(RELATION).charge(of.event("model"), pays_for=of.pays_for)


def released(of: Mechanism, gradient: Floats) -> Floats:
    return Contribution(of, gradient).release(charge=free).values


def bounded(of: Mechanism, gradient: Floats) -> Floats:
    """What the noise is added to."""
    found = of.bounded(gradient)
    return np.asarray(found * (of.whole.step if of.noise == "laplace" else 1.0), np.float64)


def farthest(of: Mechanism) -> tuple[Floats, Floats]:
    """Two bounded gradients as far from each other as can be, in the norm that the noise is for."""
    away = 1e9 * np.ones(of.size)
    if of.bound == "norm":
        away[1:] = 0.0
    return bounded(of, away), bounded(of, -away)


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_covers_the_two_tables_that_differ_most(kind: dict[str, Any]) -> None:
    """The price of the actual noise scale over the actual distance, number by number and together."""
    of = mechanism(**kind)
    first, second = farthest(of)
    norm = 2 if of.noise == "gaussian" else 1
    distances = {"feature": np.abs(first - second).max(), "model": np.linalg.norm(first - second, norm)}
    for unit, distance in distances.items():
        actual = of.noise_scale / distance
        event: Any = of.event("feature" if unit == "feature" else "model")
        assert event.noise_multiplier == pytest.approx(actual, rel=1e-6)
    own = of.event(of.privacy)
    if of.noise == "gaussian":
        assert price(own, delta=1e-6, relation=RELATION).epsilon <= of.epsilon
        assert price(own, delta=1e-6, relation=RELATION).epsilon == pytest.approx(of.epsilon, rel=1e-3)
    else:
        assert own == LaplaceDpEvent(1 / of.epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_released_numbers_have_the_noise_that_is_promised(kind: dict[str, Any]) -> None:
    of = mechanism(size=3000, **kind)
    name = "norm" if of.noise == "gaussian" else "laplace"
    sample = released(of, np.zeros(3000))
    assert rejects_wrong_scale(ks(name, scale=of.noise_scale), sample)
    assert np.var(sample) == pytest.approx(of.noise_variance, rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(scale=st.floats(0, 1e100))
def test_gradients_are_bounded_before_the_noise(kind: dict[str, Any], scale: float) -> None:
    """The same noise over a gradient and over nothing: what differs is the bounded gradient, rounded to the grid."""
    of = mechanism(size=4, **kind)
    gradient = scale * np.array([1.0, -0.5, 0.25, 0.0])
    difference = released(of, gradient) - released(of, np.zeros(4))
    expected = of.clipped(gradient)
    np.testing.assert_allclose(difference, expected, atol=3e-6 * of.clip)
    assert np.abs(difference).max() <= of.clip * (1 + 1e-5)


@given(st.floats(1e-3, 100))
@example(math.log(3))
@example(0.1)
def test_one_contribution_costs_its_epsilon_and_not_a_bit_more(epsilon: float) -> None:
    event = mechanism(epsilon=epsilon, privacy="model").event("model")
    cost = price(event, delta=0.0, relation=RELATION).epsilon
    assert epsilon * (1 - 1e-15) <= cost <= epsilon


def test_what_is_not_paid_for_is_not_released() -> None:
    def refuse(_: Mechanism) -> Receipt:
        raise BudgetExceeded("no")

    contribution = Contribution(mechanism(), np.zeros(20))
    with pytest.raises(BudgetExceeded):
        contribution.release(charge=refuse)
    contribution.release(charge=free)
    with pytest.raises(ConfigError, match="released once"):
        contribution.release(charge=free)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(bad: float) -> None:
    gradient, zeroed = np.full(20, 0.4), np.full(20, 0.4)
    gradient[3], zeroed[3] = bad, 0.0
    np.testing.assert_array_equal(released(mechanism(), gradient), released(mechanism(), zeroed))
    of = mechanism(noise="gaussian", delta=1e-6)
    np.testing.assert_array_equal(released(of, gradient), released(of, np.zeros(20)))


def test_without_noise_nothing_can_be_released() -> None:
    of = mechanism(noise="none", privacy="feature")
    assert of.noise_variance == pytest.approx(mechanism(privacy="feature").noise_variance, rel=1e-6)
    with pytest.raises(ConfigError, match="without noise"):
        of.event("feature")
    with pytest.raises(ConfigError, match="without noise"):
        released(of, np.zeros(20))
    assert "nothing is private" in of.describe()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (KINDS[0], "Each of the 20 released numbers, on its own, is private with epsilon = 2; .* up to epsilon = 40"),
        (KINDS[1], "All 20 .* together .* epsilon = 2: the noise is scaled by the number of weights"),
        (KINDS[2], "All 20 .* together .* epsilon = 2: the gradient's L1 norm is bounded by 0.5"),
        (KINDS[3], "on its own, is private with epsilon = 2, delta = 1e-06; .* times the sensitivity of the whole"),
        (KINDS[4], "together .* delta = 1e-06: the noise is scaled by the square root of the number of weights"),
        (KINDS[5], "together .* delta = 1e-06: the gradient's L2 norm is bounded by 0.5"),
        ({"noise": "direction", "bound": "norm"}, "of 4 random directions .* with a chance of 0.29, any other"),
    ],
)
def test_the_description_says_which_privacy_it_is(kind: dict[str, Any], words: str) -> None:
    assert re.search(words, mechanism(**kind).describe())


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: mechanism(clip=0.0), "clip"),
        (lambda: mechanism(epsilon=0.0), "epsilon"),
        (lambda: mechanism(size=0), "size"),
        (lambda: mechanism(epsilon=1e-300), "epsilon"),
        (lambda: mechanism(epsilon=1e300), "epsilon"),
        (lambda: mechanism(epsilon=1e-15), "clip"),
        (lambda: mechanism(epsilon=1e-12, noise="gaussian", delta=1e-300), "epsilon"),
        (lambda: mechanism(clip=1e-200), "clip"),
        (lambda: mechanism(delta=1e-6), "delta"),
        (lambda: mechanism(noise="gaussian"), "delta"),
        (lambda: mechanism(noise="gaussian", delta=1.0), "delta"),
        (lambda: mechanism(privacy="feature", bound="norm"), "bound"),
        (lambda: direction(bound="element"), "noise"),
        (lambda: direction(privacy="feature", bound="element"), "noise"),
        (lambda: direction(delta=1e-6), "delta"),
        (lambda: direction(clip=1e308), "clip"),
        (lambda: direction(clip=1e-14), "clip"),
        (lambda: mechanism(clip=1e308), "clip"),
    ],
)
def test_impossible_mechanisms_are_refused(make: Callable[[], Mechanism], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_a_gradient_of_another_size_is_refused() -> None:
    with pytest.raises(DataError, match="does not fit 20 weights"):
        Contribution(mechanism(), np.zeros(19))


def direction(size: int = 30, **changes: Any) -> Mechanism:
    stated: dict[str, Any] = {"size": size, "clip": 0.5, "epsilon": 2.0, "noise": "direction", "bound": "norm"}
    return Mechanism(**stated | changes)


def test_a_direction_is_released_once_paid_for_in_either_unit() -> None:
    of = direction()
    assert of.event("model") == of.event("feature") == PureDpEvent(2.0)
    contribution = Contribution(of, np.ones(30))
    released = contribution.release(charge=earnest)
    assert set(np.abs(released.values).tolist()) == {of.noise_scale}
    assert np.linalg.norm(released.values) == pytest.approx(0.5)
    assert of.noise_variance == of.noise_scale**2
    with pytest.raises(ConfigError, match="once"):
        contribution.release(charge=lambda _: pytest.fail("it was charged again"))
