import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Relation, price
from incrowd.privacy.account.adversaries import Blurred, Opportunity, Situation, adversaries, paper_figures
from incrowd.privacy.account.laplace_sum import LaplaceSum
from tests.privacy.account.test_laplace_sum import by_fourier
from tests.statistics import ODD, chi_square, fair

LOG3 = math.log(3)


def blurred(epsilon: float, terms: int) -> Blurred:
    return Blurred(epsilon, LaplaceSum(terms))


# One contribution under a sum of Laplace noises


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_one_noise_is_the_laplace_mechanism(epsilon: float, share: float) -> None:
    found = blurred(epsilon, 1).delta(share * epsilon)
    assert found == pytest.approx(1 - math.exp((share - 1) * epsilon / 2), rel=1e-9)
    public = pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=1e-4)
    assert found == pytest.approx(public.get_delta_for_epsilon(share * epsilon), rel=2e-2, abs=1e-4)


def test_one_noise_never_costs_more_than_epsilon() -> None:
    assert blurred(LOG3, 1).epsilon(1e-12) == pytest.approx(LOG3, rel=1e-6)
    assert blurred(LOG3, 1).epsilon(1e-12) <= LOG3
    assert blurred(LOG3, 50).delta(LOG3) == 0
    assert blurred(LOG3, 50).delta(LOG3 * (1 - 1e-6)) < 1e-200  # beyond what can be told from 0


def test_many_noises_are_the_gaussian_mechanism() -> None:
    terms, delta = 10**6, 1e-6
    deviation = math.sqrt(2 * terms) / LOG3  # in sensitivities
    exact = price(GaussianDpEvent(deviation), delta=delta, relation=Relation.ADD_OR_REMOVE_ONE, accountants=["GDP"])
    assert blurred(LOG3, terms).epsilon(delta) == pytest.approx(exact.epsilon, rel=1e-3)


@pytest.mark.parametrize("terms", [2, 5, 40])
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_the_divergence_is_that_of_the_densities(terms: int, share: float) -> None:
    grid, density = by_fourier(terms)
    step = grid[1]
    cells = round(2.0 / step)
    shift = cells * step  # the grid holds the shift exactly
    line = np.concatenate([density[:0:-1], density])
    integral = step * np.maximum(line[:-cells] - math.exp(share * shift) * line[cells:], 0).sum()
    assert blurred(shift, terms).delta(share * shift) == pytest.approx(integral, rel=1e-2)


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
    found = blurred(LOG3, terms)
    assert -3 < exceeds(sample, found, epsilon) < 4  # a bound, and a tight one
    assert exceeds(sample / 1.5, found, epsilon) > 10  # not one for two thirds of the noise
    assert exceeds(sample * 1.5, found, epsilon) < -10  # nor a tight one for three halves


@given(st.integers(1, 400), st.floats(0.05, 6), st.floats(1e-9, 0.3))
@settings(max_examples=40, deadline=None)
def test_epsilon_and_delta_belong_together_and_more_noise_hides_more(terms: int, shift: float, delta: float) -> None:
    found = blurred(shift, terms)
    epsilon = found.epsilon(delta)
    assert 0 <= epsilon <= shift
    assert found.delta(epsilon) <= delta * (1 + 1e-6)
    if 0 < epsilon < shift * (1 - 1e-6):
        assert found.delta(epsilon * (1 - 1e-3)) > delta * (1 - 1e-6)
    assert blurred(shift, terms + 1).epsilon(delta) <= epsilon
    assert blurred(shift, terms + 1).delta(shift / 2) <= found.delta(shift / 2)


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("epsilon", [0.2, 0.7])
def test_a_shift_of_one_weight_says_most(terms: int, epsilon: float) -> None:
    """What the module's text proves: two weights that move by a and b tell no more than one that moves by a + b."""
    step, reach = 0.05, 12.0
    line = np.arange(-reach, reach, step)
    density = np.array([LaplaceSum(terms).density(x) for x in line])
    for a, b in ((0.5, 0.5), (0.2, 0.8)):
        moved = [np.array([LaplaceSum(terms).density(x - c) for x in line]) for c in (a, b)]
        gap = np.outer(*moved) - math.exp(epsilon) * np.outer(density, density)
        assert step**2 * np.maximum(gap, 0).sum() < blurred(a + b, terms).delta(epsilon)


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
    seen = Opportunity(instances=4, epsilon_per_update=1.0, updates_since=updates)
    for epsilon in (0.0, 0.3, 0.8):
        each = binom.pmf(np.arange(updates + 1), updates, 1 / 4)
        exact = sum(share * seen.blurred(later).delta(epsilon) for later, share in enumerate(each))
        assert exact * (1 - 1e-9) <= seen.delta(epsilon, survived=True) <= exact * 1.05 + 1e-12
        assert seen.delta(epsilon) == pytest.approx(seen.delta(epsilon, survived=True) / 4)


@pytest.mark.slow
@given(st.integers(1, 30), st.floats(0.2, 4), st.integers(0, 3000), st.floats(1e-9, 1e-2))
@settings(max_examples=8, deadline=None)
def test_its_epsilon_is_a_bound_and_falls_with_time(k: int, epsilon: float, updates: int, delta: float) -> None:
    seen = Opportunity(instances=k, epsilon_per_update=epsilon, updates_since=updates)
    found = seen.epsilon(delta)
    assert 0 <= found <= epsilon
    assert found == epsilon or seen.delta(found) <= delta
    assert found <= seen.epsilon(delta, survived=True) * (1 + 2e-3)
    later = Opportunity(instances=k, epsilon_per_update=epsilon, updates_since=2 * updates + 50)
    assert later.epsilon(delta) <= found * (1 + 3e-3)


def test_one_instance_takes_every_update() -> None:
    seen = Opportunity(instances=1, epsilon_per_update=2.0, updates_since=30)
    assert seen.epsilon(1e-6) == pytest.approx(seen.blurred(30).epsilon(1e-6), rel=3e-3)
    assert seen.epsilon(1e-6) >= seen.blurred(30).epsilon(1e-6)


def test_a_generous_delta_leaves_nothing_to_learn() -> None:
    seen = Opportunity(instances=20, epsilon_per_update=0.5, updates_since=100)
    assert seen.epsilon(0.05) == 0
    assert seen.blurred(1000).epsilon(0.4) == 0


def test_a_thousand_million_updates_are_no_trouble() -> None:
    seen = Opportunity(instances=20, epsilon_per_update=math.log(32), updates_since=1_730_624_961)
    assert 5e-4 < seen.epsilon(1e-8) < 1e-3


# Adversary II: lemma 1, and what it is not


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


def test_who_knew_the_pool_before_learns_all_of_epsilon() -> None:
    """Three equal instances at 0: the one that differs is the update, and its pre-image is known."""
    epsilon, returned = 1.3, 1.0
    one, other = (math.exp(-abs(returned + gradient) * epsilon / 2) for gradient in (-1.0, 1.0))
    view = adversaries(Situation(instances=3, epsilon=epsilon, updates_since=0))[1]
    assert math.log(one / other) == pytest.approx(view["epsilon"])
    assert "not a DP guarantee" in view["meaning"]


# All three, as data


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


@pytest.mark.slow
def test_the_opportunist_beside_the_paper() -> None:
    view = adversaries(Situation(instances=10, epsilon=LOG3, updates_since=100_000))[2]
    assert view["updates_to_the_instance"] == 10_000
    assert view["delta"] == 1e-8
    exact = blurred(LOG3, 10_001).epsilon(1e-8)
    assert view["epsilon_for_exactly_so_many"] == pytest.approx(exact)
    paper = view["paper"]
    assert paper["printed"] == pytest.approx(3 * LOG3 / 100, rel=0.02)  # "about 3 epsilon / sqrt(T)"
    assert paper["printed"] < exact < paper["distance"] < paper["root"]  # printed, it promises too much
    assert view["epsilon"] < view["epsilon_if_not_discarded"]
    json.dumps(adversaries(Situation(instances=10, epsilon=LOG3, updates_since=0)), allow_nan=False)


def test_the_papers_figures() -> None:
    epsilon, later, delta = 1.5, 40, 1e-5
    log = math.log(1 / (2 * delta))
    found = paper_figures(epsilon=epsilon, later=later, delta=delta)
    root = found["root"]
    assert root is not None
    assert found["distance"] == pytest.approx(math.sqrt(2) * (found["printed"] or 0))
    # The quadratic of lemma 3 with a distance of 2 learning rates, at its root.
    assert 4 * later / epsilon**2 * root**2 - 4 * root - 4 * log == pytest.approx(0, abs=1e-9)
    assert paper_figures(epsilon=1.0, later=0, delta=1e-5)["printed"] is None
    assert paper_figures(epsilon=1.0, later=3, delta=0.5)["root"] is None


def test_one_instance_has_no_pre_image_to_find() -> None:
    view = adversaries(Situation(instances=1, epsilon=1.0, updates_since=3))[1]
    assert view["expected_loss"] == view["worst_case_pre_image_present"] == 0
    assert view["epsilon"] == 1.0


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(ConfigError, match="unit = 'person'"):
        Situation(instances=3, epsilon=1.0, updates_since=0, unit="person")
