import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import NormalisedClip
from papers.geyer.measure import ROWS
from papers.geyer.recipes import Case, named
from papers.geyer.setup import Setup

EPSILONS = (0.05, 1.0, 8.0)


def case(clients: int, epsilon: float) -> Case:
    return Case(clients=clients, budget=Budget(epsilon=epsilon, delta=ROWS[clients].delta), shape=(28, 28))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang (2018), theorem 8."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


@pytest.mark.parametrize("clients", ROWS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_signal_is_that_of_the_exact_gaussian_mechanism(clients: int, epsilon: float) -> None:
    delta = ROWS[clients].delta
    mu = brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-4, 20)
    assert case(clients, epsilon).signal == pytest.approx(clients * mu, rel=1e-3)


HONEST = ("best", "general", "network")


def honest(name: str, clients: int, epsilon: float = 8.0) -> Setup:
    """The setup of a recipe whose promise holds."""
    setup = named(name).setup(case(clients, epsilon))
    assert isinstance(setup, Setup)
    return setup


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("clients", ROWS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_recipe_knows_every_row_and_leaves_nothing_unpaid(name: str, clients: int, epsilon: float) -> None:
    setup = honest(name, clients, epsilon)
    config = setup.plan(clients)
    assert isinstance(config.clip, NormalisedClip)
    assert config.clip.private
    assert config.schedule.communications <= 600_000
