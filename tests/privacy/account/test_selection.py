"""The law of the number of attempts is the one that is priced, and the price holds where the truth can be computed."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NoOpDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accountants import ORDERS
from incrowd.privacy.account.accounting import Relation, price
from incrowd.privacy.account.events import OneOfDpEvent
from incrowd.privacy.account.selection import LAWS, Repetitions
from tests.statistics import ODD, chi_square

ADD_OR_REMOVE = Relation.ADD_OR_REMOVE_ONE
SHAPES = (0.0, 0.3, 1.0, 4.0, math.inf)


def probability(its: Repetitions, attempts: int) -> float:
    """How probable a number of attempts is, by the definitions of the laws."""
    least = 0 if its.shape == math.inf else 1
    if attempts < least or (its.shape < math.inf and its._decay == 0):
        return float(attempts == least)
    if its.shape == math.inf:
        return float(stats.poisson.pmf(attempts, its.mean))
    gamma = math.exp(-its._decay)
    if its.shape == 0:
        return (1 - gamma) ** attempts / (attempts * its._decay)
    logs = math.lgamma(attempts + its.shape) - math.lgamma(its.shape) - math.lgamma(attempts + 1)
    weight = math.exp(logs + attempts * math.log1p(-gamma))
    return weight / math.expm1(its.shape * its._decay)


each_shape = pytest.mark.parametrize("shape", SHAPES)


@cache  # its parameter is computed anew for every object
def law(mean: float, shape: float) -> Repetitions:
    return Repetitions(mean=mean, shape=shape)


@each_shape
@pytest.mark.parametrize("mean", [1.0, 1.001, 2.0, 7.5, 40.0])
def test_the_law_is_one_and_has_the_mean_that_is_stated(mean: float, shape: float) -> None:
    attempts = np.arange(4000)
    probabilities = np.array([probability(law(mean, shape), int(k)) for k in attempts])
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert probabilities @ attempts == pytest.approx(mean, rel=1e-6)
    for value in (0.0, 0.3, 0.9, 1.0):
        assert law(mean, shape).generating(value) == pytest.approx(probabilities @ value**attempts, abs=1e-9)


def test_the_mean_is_never_above_what_is_stated() -> None:
    """Not by the last digit either, for the price is that of the mean that is stated."""
    for shape in SHAPES[:-1]:
        for mean in np.linspace(1.01, 50.0, 60):
            its = law(float(mean), shape)
            assert its._mean_at(its._decay) <= mean


def test_known_laws_are_found() -> None:
    attempts = range(1, 12)
    geometric, logarithmic = law(5.0, 1.0), law(5.0, 0.0)
    assert [probability(geometric, k) for k in attempts] == pytest.approx(stats.geom.pmf(list(attempts), 1 / 5))
    assert [probability(law(5.0, math.inf), k) for k in attempts] == pytest.approx(stats.poisson.pmf(list(attempts), 5))
    ratio = probability(logarithmic, 2) / probability(logarithmic, 1) * 2
    assert [probability(logarithmic, k) for k in attempts] == pytest.approx(stats.logser.pmf(list(attempts), ratio))
    several = law(5.0, 3.0)  # a negative binomial law without its zero
    # From p(2) / p(1) = (1 - gamma) (1 + shape) / 2.
    gamma = 1 - 2 * probability(several, 2) / probability(several, 1) / (1 + 3.0)
    found = stats.nbinom.pmf(list(attempts), 3.0, gamma) / stats.nbinom.sf(0, 3.0, gamma)
    assert [probability(several, k) for k in attempts] == pytest.approx(found)


@each_shape
def test_draws_follow_the_law_and_no_other(shape: float) -> None:
    randomness = SeededRandomness(seed=5)
    draws = [law(4.0, shape).sample(randomness.stream("attempts", number)) for number in range(4000)]
    counts = np.bincount(np.minimum(draws, 12), minlength=13)

    def check(mean: float) -> float:
        chances = np.array([probability(law(mean, shape), k) for k in range(12)])
        chances = np.append(chances, 1 - chances.sum())
        possible = chances > 0
        assert counts[~possible].sum() == 0
        return chi_square(counts[possible], chances[possible])

    assert check(4.0) > ODD
    assert check(4.0 * 2 / 3) < ODD
    assert check(4.0 * 3 / 2) < ODD


class Fixed:
    """A stream whose next bits are known."""

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def bits(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.full(size, self._bits, np.uint64)

    def normals(self, size: int) -> Floats:
        raise NotImplementedError

    laplaces = normals


@each_shape
@pytest.mark.parametrize("mean", [1.5, 4.0])
def test_nothing_of_the_tail_is_cut_off(shape: float, mean: float) -> None:
    """Every chance gives the number of attempts that the law has there, far beyond ten times the mean."""
    its = law(mean, shape)
    chances = np.array([probability(its, attempts) for attempts in range(4000)])
    beyond = np.cumsum(chances[::-1])[::-1]  # of this number of attempts or more, from the small ones up
    reached = 0
    for chance in (0.3, 1e-3, 1e-6, 1e-9, 1e-12, 1e-14):
        drawn = its.sample(Fixed(2**64 - int(chance * 2**64)))
        assert beyond[drawn] >= chance * 0.99 - 1e-15
        assert beyond[drawn + 1] <= chance * 1.01 + 1e-15
        reached = max(reached, drawn)
    assert reached > 10 * mean or beyond[int(10 * mean) + 1] < 1e-14


def test_one_attempt_is_no_choice() -> None:
    once = np.linspace(0.1, 5.0, len(ORDERS))
    for shape in SHAPES[:-1]:
        only = law(1.0, shape)
        assert {only.sample(SystemRandomness().stream("attempts")) for _ in range(20)} == {1}
        assert (probability(only, 1), probability(only, 2), only.generating(0.25)) == (1.0, 0.0, 0.25)
        assert np.array_equal(only.renyi(ORDERS, once), once)
    perhaps = law(1.0, math.inf)
    assert probability(perhaps, 0) == pytest.approx(math.exp(-1))
    assert np.all(perhaps.renyi(ORDERS, once) >= once)


def test_impossible_laws_are_refused() -> None:
    for mean in (0.99, -1.0, math.nan, math.inf, 1e10):
        with pytest.raises(ConfigError, match="mean"):
            law(mean, 1.0)
    for shape in (-0.1, math.nan, -math.inf, 1e10):
        with pytest.raises(ConfigError, match="shape"):
            law(2.0, shape)
    with pytest.raises(ConfigError, match="at least one event"):
        price(law(2.0, 1.0).event([]), delta=1e-5, relation=ADD_OR_REMOVE)


INNER = {
    "gaussian": GaussianDpEvent(1.3),
    "laplace": LaplaceDpEvent(0.7),
    "rounds": SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(0.9)), 40),
}


@each_shape
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_the_price_is_that_of_dp_accounting(inner: object, shape: float) -> None:
    """Ours is never the higher one, beyond rounding: it has a theorem's monotonicity under the Poisson law, too."""
    for mean in (2.0, 10.0, 250.0):
        event = RepeatAndSelectDpEvent(inner, mean, shape)
        theirs = RdpAccountant().compose(event)
        for delta in (1e-3, 1e-8):
            ours = price(event, delta=delta, relation=ADD_OR_REMOVE).epsilon
            assert ours <= theirs.get_epsilon(delta) * (1 + 1e-7)
            if shape != math.inf:
                assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-7)


def test_attempts_that_differ_cost_what_the_dearest_costs_at_each_order() -> None:
    """Two curves that cross: neither alone is a bound for a coin's choice between them."""
    gaussian, laplace = GaussianDpEvent(2.0), LaplaceDpEvent(0.8)
    costs = {delta: [at(event, delta) for event in (gaussian, laplace)] for delta in (1e-1, 1e-9)}
    assert costs[1e-1][0] < costs[1e-1][1]
    assert costs[1e-9][0] > costs[1e-9][1]
    for delta, each in costs.items():
        assert at(OneOfDpEvent((gaussian, laplace)), delta) >= max(each)
        assert at(law(5.0, 1.0).event([gaussian, laplace]), delta) > max(
            at(law(5.0, 1.0).event([event]), delta) for event in (gaussian, laplace)
        )
    assert at(law(5.0, 1.0).event([gaussian, gaussian]), 1e-5) == at(law(5.0, 1.0).event([gaussian]), 1e-5)
    assert at(OneOfDpEvent((gaussian, NoOpDpEvent())), 1e-5) == at(gaussian, 1e-5)


def at(event: object, delta: float) -> float:
    return price(event, delta=delta, relation=ADD_OR_REMOVE, accountants=("RDP",)).epsilon


# The truth, where it can be computed: one number with Gaussian noise, and the largest (or smallest) of all attempts.
# If F is the distribution function of one attempt, that of the best is the generating function of F.

GRID = np.linspace(-12.0, 12.0, 48_001)


def masses(repetitions: Repetitions, *, centre: float, noise: float) -> Floats:
    """How probable it is that the best lies in each cell of the grid, and, first, that there is none at all."""
    function = np.array([repetitions.generating(float(value)) for value in stats.norm.cdf(GRID, centre, noise)])
    return np.concatenate([[repetitions.generating(0.0)], np.diff(function)])


def true_delta(one: Floats, other: Floats, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


@pytest.mark.slow
@each_shape
@pytest.mark.parametrize("better", [1.0, -1.0], ids=["with the client", "without the client"])
def test_the_price_of_the_best_of_gaussians_is_above_the_truth(shape: float, better: float) -> None:
    noise = 1.5
    for mean in (2.0, 6.0, 25.0):
        repetitions = law(mean, shape)
        base, moved = (masses(repetitions, centre=centre, noise=noise) for centre in (0.0, better))
        for delta in (1e-2, 1e-4):
            bound = at(repetitions.event([GaussianDpEvent(noise)]), delta)
            truth = max(true_delta(base, moved, bound), true_delta(moved, base, bound))
            assert truth <= delta
        # And this can fail: what one attempt costs is below the truth of what the choice costs.
        alone = price(GaussianDpEvent(noise), delta=1e-4, relation=ADD_OR_REMOVE).epsilon
        assert max(true_delta(base, moved, alone), true_delta(moved, base, alone)) > 1e-4


def test_the_number_of_attempts_must_be_random() -> None:
    """Attempts that nearly always say 0: a fixed number of them leaks nearly n times as much, a random one does not.

    One attempt says 1 with probability p on one data set and e^epsilon p on the other, and 1 counts as better.
    """
    epsilon, rare, attempts = 1.0, 1e-4, 20

    def loss(silent: Callable[[float], float]) -> float:
        """The logarithm of the ratio of the probabilities that the best is 0; `silent` maps those of one attempt."""
        return math.log(silent(1 - often) / silent(1 - math.exp(-epsilon) * often))

    often = 1 - rare  # it is 0 with probability 1e-4 here, and with 1 - (1 - 1e-4) / e there
    fixed = -loss(lambda value: value**attempts)
    geometric = -loss(law(attempts, LAWS["geometric"]).generating)
    single = -math.log(rare / (1 - math.exp(-epsilon) * often))
    assert fixed == pytest.approx(attempts * single)
    assert geometric < 3 * single
