"""The divergences of a Poisson sample, all at once, against dp_accounting's one by one."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy.account.poisson_sample import divergence, loss_distribution

MORE, LESS = AdjacencyType.ADD, AdjacencyType.REMOVE

noises = st.floats(0.2, 100)
shares = st.floats(1e-9, 1) | st.sampled_from([1e-9, 0.5, 1 - 1e-9, 1.0])


def losses(noise: float, share: float, direction: AdjacencyType) -> GaussianPrivacyLoss:
    return GaussianPrivacyLoss(noise, sampling_prob=share, adjacency_type=direction)


@pytest.mark.slow
@given(noise=noises, share=shares, direction=st.sampled_from([MORE, LESS]))
def test_the_divergences_are_the_librarys(noise: float, share: float, direction: AdjacencyType) -> None:
    of = losses(noise, share, direction)
    ends = of.connect_dots_bounds()
    epsilons = np.linspace(ends.epsilon_lower - 1e-3, ends.epsilon_upper + 1e-3, 101)
    assert divergence(of, epsilons) == pytest.approx(of.get_delta_for_epsilon(epsilons), rel=0, abs=1e-15)


@pytest.mark.parametrize("share", [1e-4, 0.3, 0.999])
def test_losses_of_a_client_more_end_and_those_of_one_less_begin(share: float) -> None:
    end = -math.log1p(-share)
    more, less = losses(1.3, share, MORE), losses(1.3, share, LESS)
    assert divergence(more, np.array([end, end + 1e-6, end + 9])) == pytest.approx(0, abs=1e-15)
    begun = np.array([-end, -end - 1e-6, -end - 9])
    assert divergence(less, begun) == pytest.approx(-np.expm1(begun), rel=1e-14)


@pytest.mark.parametrize("share", [0.004, 0.3, 1.0])
@pytest.mark.parametrize("noise", [0.6, 1.1, 8.0])
def test_what_composes_of_them_costs_the_same(noise: float, share: float) -> None:
    ours = loss_distribution(noise, sampling_prob=share, grid=1e-3).self_compose(50)
    library = from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=1e-3).self_compose(50)
    for delta in (1e-3, 1e-6):
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(library.get_epsilon_for_delta(delta), rel=1e-6)


def test_with_everyone_in_the_sample_both_directions_are_one() -> None:
    assert loss_distribution(2.0, sampling_prob=1.0, grid=1e-3)._symmetric
    sampled = loss_distribution(2.0, sampling_prob=0.5, grid=1e-3)
    assert not sampled._symmetric
    more, less = (part.get_delta_for_epsilon(0.5) for part in (sampled._pmf_add, sampled._pmf_remove))
    assert 0 < more < less
