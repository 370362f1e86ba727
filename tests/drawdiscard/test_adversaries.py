import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from incrowd._random import Floats
from incrowd.drawdiscard.adversaries import Blurred, Situation, adversaries, paper_figures
from incrowd.drawdiscard.server import three_adversaries
from incrowd.errors import ConfigError
from tests.drawdiscard.mail import asked
from tests.statistics import ODD, chi_square, fair

LOG3 = math.log(3)


# The sum of Laplace values


def by_fourier(terms: int) -> tuple[Floats, Floats]:
    """A grid and the density on it, from the characteristic function: absolute errors of about 1e-12."""
    size, step = 2**16, 0.005 * math.sqrt(terms)
    frequencies = 2 * np.pi * np.fft.rfftfreq(size, step)
    density: Floats = np.fft.irfft((1 + frequencies**2) ** -float(terms), size)[: size // 2] / step
    return step * np.arange(size // 2, dtype=np.float64), density


@pytest.mark.parametrize("terms", [3, 10, 100, 5_000])
def test_against_the_characteristic_function(terms: int) -> None:
    grid, density = by_fourier(terms)
    total = Blurred(1.0, terms)
    step = grid[1]
    for place in (0, 100, 700, 1500):
        assert total.density(grid[place]) == pytest.approx(density[place], abs=1e-10)
        assert total.density(-grid[place]) == total.density(grid[place])
        beyond = step * (density[place:].sum() - density[place] / 2)
        assert total.tail(grid[place]) == pytest.approx(beyond, rel=1e-3, abs=1e-10)
        assert total.tail(-grid[place]) == pytest.approx(1 - total.tail(grid[place]), rel=1e-14)


# One contribution under a sum of Laplace noises


def exceeds(sample: Floats, found: Blurred, epsilon: float) -> float:
    """By how many standard errors a sorted sample of the noise shows more than the bound, at the best evidence."""
    places = np.linspace(0, np.quantile(sample, 0.999), 100)
    shifted, still = (1 - np.searchsorted(sample, places - moved) / len(sample) for moved in (found.shift, 0.0))
    errors = np.sqrt((shifted + math.exp(2 * epsilon) * still) / len(sample))
    return float(np.max((shifted - math.exp(epsilon) * still - found.delta(epsilon)) / errors))


@pytest.mark.parametrize(("terms", "epsilon"), [(1, 0.5), (4, 0.4), (30, 0.2)])
def test_the_bound_against_monte_carlo(terms: int, epsilon: float) -> None:
    generator = np.random.Generator(np.random.SFC64(terms))
    sample = np.sort(generator.laplace(size=(terms, 500_000)).sum(axis=0))
    found = Blurred(LOG3, terms)
    assert -3 < exceeds(sample, found, epsilon) < 4  # a bound, and a tight one
    assert exceeds(sample / 1.5, found, epsilon) > 10  # not one for two thirds of the noise
    assert exceeds(sample * 1.5, found, epsilon) < -10  # nor a tight one for three halves


@given(st.integers(1, 400), st.floats(0.05, 6), st.floats(1e-9, 0.3))
@settings(max_examples=40, deadline=None)
def test_epsilon_and_delta_belong_together_and_more_noise_hides_more(terms: int, shift: float, delta: float) -> None:
    found = Blurred(shift, terms)
    epsilon = found.epsilon(delta)
    assert 0 <= epsilon <= shift
    assert found.delta(epsilon) <= delta * (1 + 1e-6)
    if 0 < epsilon < shift * (1 - 1e-6):
        assert found.delta(epsilon * (1 - 1e-3)) > delta * (1 - 1e-6)
    assert Blurred(shift, terms + 1).epsilon(delta) <= epsilon
    assert Blurred(shift, terms + 1).delta(shift / 2) <= found.delta(shift / 2)


@pytest.mark.parametrize(("terms", "epsilon"), [(1, 0.7), (3, 0.2)])
def test_a_shift_of_one_weight_says_most(terms: int, epsilon: float) -> None:
    """The module's proof: two weights that move by a and b tell no more than one that moves by a + b."""
    step, reach = 0.05, 12.0
    line = np.arange(-reach, reach, step)
    density = np.array([Blurred(1.0, terms).density(x) for x in line])
    for a, b in ((0.5, 0.5), (0.2, 0.8)):
        moved = [np.array([Blurred(1.0, terms).density(x - c) for x in line]) for c in (a, b)]
        gap = np.outer(*moved) - math.exp(epsilon) * np.outer(density, density)
        assert step**2 * np.maximum(gap, 0).sum() < Blurred(a + b, terms).delta(epsilon)


# Adversary III: the coins of the server


def test_the_noises_since_and_whether_it_survived_are_what_the_coins_say() -> None:
    """A pool that is run: k = 3, 12 updates after the one that is looked for."""
    k, updates, runs = 3, 12, 40_000
    generator = np.random.Generator(np.random.SFC64(3))
    noises = np.zeros((runs, k), np.int64)
    here = np.zeros((runs, k), bool)
    rows = np.arange(runs)
    here[rows, generator.integers(k, size=runs)] = True
    for _ in range(updates):
        drawn, replaced = generator.integers(k, size=(2, runs))
        noises[rows, replaced] = noises[rows, drawn] + 1
        here[rows, replaced] = here[rows, drawn]
    seen = generator.integers(k, size=runs)
    survived = here[rows, seen]
    assert fair(int(survived.sum()), runs, chance=1 / k) > ODD
    assert fair(int(survived.sum()), runs, chance=1 / (k + 1)) < ODD
    expected = binom.pmf(np.arange(updates + 1), updates, 1 / k)
    common = expected * runs > 5
    for chosen in (survived, ~survived):
        counts = np.bincount(noises[rows, seen][chosen], minlength=updates + 1)[: updates + 1]
        assert chi_square(counts[common], expected[common]) > ODD
        assert chi_square(counts[common], binom.pmf(np.arange(updates + 1), updates, 1 / 2)[common]) < ODD


@pytest.mark.parametrize("updates", [0, 1, 7, 60])
def test_the_classes_are_no_better_than_every_number_of_updates(updates: int) -> None:
    seen = Situation(instances=4, epsilon=1.0, updates_since=updates)
    for epsilon in (0.0, 0.3, 0.8):
        each = binom.pmf(np.arange(updates + 1), updates, 1 / 4)
        exact = sum(share * seen.blurred(later).delta(epsilon) for later, share in enumerate(each))
        assert exact * (1 - 1e-9) <= seen.opportunist_delta(epsilon, survived=True) <= exact * 1.05 + 1e-12
        assert seen.opportunist_delta(epsilon) == pytest.approx(seen.opportunist_delta(epsilon, survived=True) / 4)


@pytest.mark.slow
@given(st.integers(1, 30), st.floats(0.2, 4), st.integers(0, 3000), st.floats(1e-9, 1e-2))
@settings(max_examples=8, deadline=None)
def test_its_epsilon_is_a_bound_and_falls_with_time(k: int, epsilon: float, updates: int, delta: float) -> None:
    seen = Situation(instances=k, epsilon=epsilon, updates_since=updates, delta=delta)
    found = seen.opportunist()
    assert 0 <= found <= epsilon
    assert found == epsilon or seen.opportunist_delta(found) <= delta
    assert found <= seen.opportunist(survived=True) * (1 + 2e-3)
    later = Situation(instances=k, epsilon=epsilon, updates_since=2 * updates + 50, delta=delta)
    assert later.opportunist() <= found * (1 + 3e-3)


def test_one_instance_takes_every_update_and_has_no_pre_image_to_find() -> None:
    seen = Situation(instances=1, epsilon=2.0, updates_since=30, delta=1e-6)
    exact = seen.blurred(30).epsilon(1e-6)
    assert exact <= seen.opportunist() <= exact * (1 + 3e-3)
    view = adversaries(seen)[1]
    assert view["expected_loss"] == view["worst_case_pre_image_present"] == 0
    assert view["epsilon"] == 2.0


# Adversary II: lemma 1, and its limits


def likelihood(found: tuple[float, ...], gradient: float, epsilon: float) -> float:
    """Of the instances, when any two of them may be pre-image and update: in units of the learning rate."""
    pairs = itertools.permutations(found, 2)
    return sum(math.exp(-abs(after - before + gradient) * epsilon / 2) for before, after in pairs)


@pytest.mark.parametrize("k", [2, 3])
def test_the_internal_threat_learns_half_of_epsilon_at_most_when_all_pools_are_equally_likely(k: int) -> None:
    epsilon = 1.3
    places, gradients = np.linspace(-2, 2, 9), np.linspace(-1, 1, 5)
    worst = max(
        math.log(likelihood(found, a, epsilon) / likelihood(found, b, epsilon))
        for found in itertools.product(places, repeat=k)
        for a, b in itertools.product(gradients, repeat=2)
    )
    view = adversaries(Situation(instances=k, epsilon=epsilon, updates_since=0))[1]
    assert worst == pytest.approx(view["worst_case_pre_image_present"])
    assert view["expected_loss"] == pytest.approx((k - 1) / k * worst)


def test_an_adversary_who_knew_the_pool_before_learns_all_of_epsilon() -> None:
    """Three equal instances at 0: the one that differs is the update, and its pre-image is known."""
    epsilon, returned = 1.3, 1.0
    one, other = (math.exp(-abs(returned + gradient) * epsilon / 2) for gradient in (-1.0, 1.0))
    view = adversaries(Situation(instances=3, epsilon=epsilon, updates_since=0))[1]
    assert math.log(one / other) == pytest.approx(view["epsilon"])
    assert "not a DP guarantee" in view["meaning"]


# All three, as data


def test_an_epsilon_too_large_for_the_bounds_leaves_the_guarantee() -> None:
    changes: dict[str, object] = {"merge": 1.0, "privacy": "feature", "gamma": 1.0}
    assert "expected_loss" in three_adversaries(asked(epsilon=700.0, **changes))[1]
    assert [view["epsilon"] for view in three_adversaries(asked(epsilon=1e4, **changes))] == [1e4] * 3


def test_the_channel_listener_is_told_per_feature_and_per_model() -> None:
    def view(unit: str) -> dict[str, float]:
        noise = Situation(instances=5, epsilon=2.0, updates_since=0, weights=8, clip=0.5, learning_rate=0.1, unit=unit)
        return adversaries(noise)[0]

    feature, model, l1 = view("feature"), view("model"), view("l1")
    assert (feature["epsilon_per_feature"], feature["epsilon_per_model"]) == (2.0, 16.0)
    assert (model["epsilon_per_feature"], model["epsilon_per_model"]) == (0.25, 2.0)
    assert (l1["epsilon_per_feature"], l1["epsilon_per_model"]) == (2.0, 2.0)
    assert feature["noise_scale"] == l1["noise_scale"] == pytest.approx(2 * 0.1 * 0.5 / 2)
    assert model["noise_scale"] == pytest.approx(8 * feature["noise_scale"])
    with pytest.raises(ConfigError, match="unit = 'person'"):
        view("person")


@pytest.mark.slow
def test_the_opportunist_beside_the_paper() -> None:
    view = adversaries(Situation(instances=10, epsilon=LOG3, updates_since=100_000))[2]
    assert view["updates_to_the_instance"] == 10_000
    assert view["delta"] == 1e-8
    exact = Blurred(LOG3, 10_001).epsilon(1e-8)
    assert view["epsilon_for_exactly_so_many"] == pytest.approx(exact)
    paper = view["paper"]
    assert paper["printed"] == pytest.approx(3 * LOG3 / 100, rel=0.02)  # "about 3 epsilon / sqrt(T)"
    assert paper["printed"] < exact < paper["root"]  # printed, it promises too much
    assert view["epsilon"] < view["epsilon_if_not_discarded"]
    json.dumps(adversaries(Situation(instances=10, epsilon=LOG3, updates_since=0)), allow_nan=False)


def test_the_papers_figures() -> None:
    epsilon, later, delta = 1.5, 40, 1e-5
    root = paper_figures(epsilon=epsilon, later=later, delta=delta)["root"]
    assert root is not None
    # The quadratic of lemma 3 with a distance of 2 learning rates, at its root.
    log = math.log(1 / (2 * delta))
    assert 4 * later / epsilon**2 * root**2 - 4 * root - 4 * log == pytest.approx(0, abs=1e-9)
    assert paper_figures(epsilon=1.0, later=0, delta=1e-5)["printed"] is None
    assert paper_figures(epsilon=1.0, later=3, delta=0.5)["root"] is None
