"""Gaussian releases about samples: Poisson ones against dp_accounting, fixed sizes against sums over fine lines."""

import math
from itertools import combinations

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.privacy.account.accounting import Curve, LossDistributionCurve, Relation, RenyiCurve
from incrowd.privacy.account.events import RepeatedEvent, divergence, fixed_size_loss, poisson_loss

Vector = NDArray[np.float64]
GRID = 1e-3
REPLACE = Relation.REPLACE_ONE


def fixed(clients: int, cohort: int, noise: float) -> SampledWithoutReplacementDpEvent:
    return SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(noise))


def curve(runs: list[RepeatedEvent], grid: float = GRID) -> LossDistributionCurve:
    return LossDistributionCurve(runs, grid)


def sums(values: Vector, cohort: int, noise: float, line: Vector) -> Vector:
    """The density of the noised sum over a cohort of a fixed size; noise is relative to 2C, so C is 1/2."""
    centres = [sum(chosen) for chosen in combinations(values, cohort)]
    densities = [np.exp(-(((line - centre) / noise) ** 2) / 2) for centre in centres]
    return np.asarray(np.mean(densities, axis=0) / (noise * math.sqrt(2 * math.pi)))


def true_delta(first: Vector, second: Vector, epsilon: float, width: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum()) * width


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "cohort"), [(5, 1), (5, 2), (5, 4), (3, 2)])
@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0])
def test_one_round_is_exact(clients: int, cohort: int, noise: float) -> None:
    """The worst data: one client at one end, all others at the other. Half the sensitivity is found out."""
    line = np.linspace(-12 * noise - 3, 12 * noise + 3, 100_001)
    there = np.full(clients, -0.5)
    here = np.array([0.5, *there[1:]])
    bound = curve([(fixed(clients, cohort, noise), 1)], grid=1e-4)
    half = curve([(fixed(clients, cohort, 2 * noise), 1)], grid=1e-4)
    for epsilon in (0.0, 0.03, 0.2, 0.5):
        one, other = (sums(values, cohort, noise, line) for values in (here, there))
        true = max(true_delta(*pair, epsilon, line[1] - line[0]) for pair in ((one, other), (other, one)))
        assert true * (1 - 1e-7) <= bound.delta(epsilon) <= true * 1.0001 + 1e-9
        assert half.delta(epsilon) < true or true < 1e-12


STEP, REACH = 1e-3, 9_000


def losses(share: float, noise: float, others: float) -> Vector:
    """A histogram of the loss of a round, where one client is at one end or at the other and all others in one place.

    It is below the truth: each loss is rounded down, and what is out of reach is left out.
    """
    line = np.linspace(-9 * noise - 0.5, 9 * noise + 0.5, 50_001)
    rest, here, there = (np.exp(-(((line - at) / noise) ** 2) / 2) for at in (others, 0.5, -0.5))
    first, second = (1 - share) * rest + share * here, (1 - share) * rest + share * there
    width = (line[1] - line[0]) / (noise * math.sqrt(2 * math.pi))
    at = np.floor(np.log(first / second) / STEP).astype(int)
    within = abs(at) <= REACH
    return np.asarray(
        np.bincount(at[within] + REACH, weights=first[within] * width, minlength=2 * REACH + 1), dtype=float
    )


def true_deltas(case: tuple[int, int, float, int]) -> dict[float, float]:
    """At each epsilon, the most that a replaced client makes of the rounds, wherever the others are."""
    clients, cohort, noise, rounds = case
    size = 2 * REACH * rounds + 1
    near, middle, far = (np.fft.rfft(losses(cohort / clients, noise, place), size) for place in (-0.5, 0.0, 0.5))
    at = STEP * (np.arange(size) - REACH * rounds)
    found = dict.fromkeys((0.01, 0.1, 0.5, 2.0), 0.0)
    for way in (near**rounds, middle**rounds, far**rounds, near ** (rounds // 2) * far ** (rounds - rounds // 2)):
        together = np.fft.irfft(way, size)
        for epsilon, known in found.items():
            above = at > epsilon
            found[epsilon] = max(known, float(together[above] @ -np.expm1(epsilon - at[above])))
    return {epsilon: delta for epsilon, delta in found.items() if delta > 1e-9}


def is_bound(curve: Curve, deltas: dict[float, float]) -> bool:
    return all(curve.delta(epsilon) >= delta * (1 - 1e-6) for epsilon, delta in deltas.items())


CASES = [(100, 10, 0.5, 4), (100, 30, 1.0, 8), (100, 90, 1.0, 3), (1000, 5, 0.6, 6)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounds_cost_no_more_wherever_the_others_are(case: tuple[int, int, float, int]) -> None:
    clients, cohort, noise, rounds = case
    true = true_deltas(case)
    assert len(true) == 4
    assert is_bound(curve([(fixed(clients, cohort, noise), rounds)]), true)
    for wrong in (
        (fixed(clients, cohort, 2 * noise), rounds),  # the sensitivity of adding or removing
        (fixed(clients, cohort // 2, noise), rounds),
        (fixed(clients, cohort, noise), rounds // 2),
    ):
        assert not is_bound(curve([wrong]), true)


def test_each_direction_composed_on_its_own_is_no_bound() -> None:
    """Lebeda et al. (2024): with the others in the middle, three rounds cost more than in either direction of a Poisson
    sample, at twice its sensitivity.
    """
    clients, cohort, noise, rounds = case = (100, 90, 1.0, 3)
    directions = curve([(PoissonSampledDpEvent(cohort / clients, GaussianDpEvent(noise)), rounds)], 1e-4)
    assert not is_bound(directions, true_deltas(case))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "noise"), [(0.1, 0.5), (0.5, 1.0), (0.9, 2.0)])
def test_one_distribution_covers_both_orders_of_the_neighbours(share: float, noise: float) -> None:
    """Below an alpha of 1, too, where a distribution of one direction does not."""
    line = np.linspace(-9 * noise, 9 * noise + 1, 100_001)
    rest, moved = (np.exp(-(((line - at) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi)) for at in (0.0, 1.0))
    mixed = (1 - share) * rest + share * moved
    ours = fixed_size_loss(noise, clients=1000, cohort=round(1000 * share), grid=1e-4)
    twin = PrivacyLossDistribution(from_gaussian_mechanism(noise, sampling_prob=share)._pmf_remove)
    short = False
    for epsilon in (-1.0, -0.3, -0.03, 0.0, 0.03, 0.3, 1.0):
        for pair in ((mixed, rest), (rest, mixed)):
            true = true_delta(*pair, epsilon, line[1] - line[0])
            assert ours.get_delta_for_epsilon(epsilon) >= true - 1e-9
            short |= twin.get_delta_for_epsilon(epsilon) < true - 1e-4
    assert short


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*CASES, (1000, 220, 1.25, 54), (10**6, 1000, 1.0, 2000), (10**9, 1, 1.0, 100)], ids=str
)
def test_it_is_tighter_than_rdp_and_not_far_above_the_lower_bound(case: tuple[int, int, float, int]) -> None:
    clients, cohort, noise, rounds = case
    runs: list[RepeatedEvent] = [(fixed(clients, cohort, noise), rounds)]
    lower = LossDistributionCurve([(PoissonSampledDpEvent(cohort / clients, GaussianDpEvent(noise)), rounds)], 1e-4)
    for delta in (1e-3, 1e-5, 1e-8):
        epsilon = curve(runs, 1e-4).epsilon(delta)
        assert lower.epsilon(delta) * (1 - 1e-6) <= epsilon <= RenyiCurve(runs, REPLACE).epsilon(delta)
        assert epsilon <= 1.4 * lower.epsilon(delta) + 1e-3


def test_extreme_noise_is_priced_or_nothing_is_proven() -> None:
    assert curve([(fixed(10, 3, 1e9), 1)]).epsilon(1e-6) <= GRID
    assert curve([(fixed(10, 3, 1e-4), 1)]).epsilon(1e-6) == math.inf
    assert curve([(fixed(10, 3, 0.02), 1)]).epsilon(1e-6) == math.inf  # losses of 1,250 are off the line
    assert curve([(fixed(10, 3, 0.09), 1)]).epsilon(1e-6) < 200
    assert curve([(fixed(10**9, 1, 1.0), 10)]).epsilon(1e-7) < 1e-2
    assert curve([(fixed(10, 3, 1.0), 1)]).epsilon(0.0) == math.inf


# Poisson samples, all divergences at once

MORE, LESS = AdjacencyType.ADD, AdjacencyType.REMOVE

noises = st.floats(0.2, 100)
shares = st.floats(1e-9, 1) | st.sampled_from([1e-9, 0.5, 1 - 1e-9, 1.0])


def gaussian_losses(noise: float, share: float, direction: AdjacencyType) -> GaussianPrivacyLoss:
    return GaussianPrivacyLoss(noise, sampling_prob=share, adjacency_type=direction)


@pytest.mark.slow
@given(noise=noises, share=shares, direction=st.sampled_from([MORE, LESS]))
def test_the_divergences_are_the_librarys(noise: float, share: float, direction: AdjacencyType) -> None:
    of = gaussian_losses(noise, share, direction)
    ends = of.connect_dots_bounds()
    epsilons = np.linspace(ends.epsilon_lower - 1e-3, ends.epsilon_upper + 1e-3, 101)
    assert divergence(of, epsilons) == pytest.approx(of.get_delta_for_epsilon(epsilons), rel=0, abs=1e-15)


@pytest.mark.parametrize(("noise", "share"), [(0.6, 0.3), (1.1, 0.004), (8.0, 1.0)])
def test_what_composes_of_them_costs_the_same(noise: float, share: float) -> None:
    ours = poisson_loss(noise, sampling_prob=share, grid=1e-3).self_compose(50)
    library = from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=1e-3).self_compose(50)
    for delta in (1e-3, 1e-6):
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(library.get_epsilon_for_delta(delta), rel=1e-6)


def test_with_everyone_in_the_sample_both_directions_are_one() -> None:
    assert poisson_loss(2.0, sampling_prob=1.0, grid=1e-3)._symmetric
    sampled = poisson_loss(2.0, sampling_prob=0.5, grid=1e-3)
    assert not sampled._symmetric
    more, less = (part.get_delta_for_epsilon(0.5) for part in (sampled._pmf_add, sampled._pmf_remove))
    assert 0 < more < less
