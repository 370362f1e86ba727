import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from incrowd.errors import ConfigError, DataError
from incrowd.learning.features import GlyphMetric
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import NormalisedClip
from papers.geyer.measure import ROWS
from papers.geyer.paper import CONSTANTS, QUICK
from papers.geyer.recipes import RECIPES, Case, named
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


@pytest.mark.parametrize("clients", ROWS)
def test_general_knows_nothing_of_handwriting_and_network_nothing_at_all(clients: int) -> None:
    features = honest("general", clients).features
    assert features is not None
    assert "Moment" not in features.name
    assert "Glyph" not in features.name
    assert isinstance(honest("best", clients).features, GlyphMetric)
    assert honest("network", clients).features is None


@pytest.mark.parametrize("clients", ROWS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_best_takes_no_more_directions_than_its_metric_has(clients: int, epsilon: float) -> None:
    setup = honest("best", clients, epsilon)
    assert isinstance(setup.features, GlyphMetric)
    assert setup.dimensions is not None
    assert setup.dimensions <= setup.features.dimensions
    assert setup.features.glyphs.count * setup.features.glyphs.variants == 30_000  # what learning a metric costs


def test_best_learns_more_directions_from_a_stronger_signal() -> None:
    weak, middle, strong, strongest = (
        honest("best", clients, epsilon).dimensions for clients, epsilon in ((100, 1), (100, 8), (1000, 8), (10_000, 8))
    )
    assert (weak, middle, strong, strongest) == (32, 128, 512, 1024)


@pytest.mark.parametrize("clients", ROWS)
def test_the_paper_s_recipe_has_constants_of_its_own_for_each_row(clients: int) -> None:
    assert RECIPES["paper"].setup(case(clients, 8)) is CONSTANTS[clients]
    assert RECIPES["paper-quick"].setup(case(clients, 8)) is (CONSTANTS | QUICK)[clients]
    other = Case(clients=99, budget=Budget(epsilon=8, delta=1e-3), shape=(28, 28))
    with pytest.raises(ConfigError, match="clients = 99: the paper has rows for 100, 1000, 10000"):
        RECIPES["paper"].setup(other)


def test_every_recipe_is_either_honest_or_the_paper_s() -> None:
    assert set(RECIPES) == {*HONEST, "paper", "paper-quick"}


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(ConfigError, match=r"recipe = 'worst': give one of best, general, network, paper"):
        named("worst")


def test_only_images_have_strokes() -> None:
    with pytest.raises(DataError, match=r"shape \(5,\): these recipes are for grey images"):
        Case(clients=100, budget=Budget(epsilon=8, delta=1e-3), shape=(5,))
