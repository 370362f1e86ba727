"""What Pihur et al. (2018) prove and observe, each with a control that must not hold."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from incrowd._random import Floats, SeededRandomness
from incrowd.data import load_digits
from incrowd.drawdiscard.glm import MULTINOMIAL, Glm, one_hot
from incrowd.drawdiscard.pool import Pool, stable_variance
from incrowd.drawdiscard.strategies import AcceptOneIn, Batching, DrawAndDiscard, SameInstance, Strategy, average

ODD = 1e-6
WEIGHTS = 24

Make = Callable[[Pool], DrawAndDiscard | SameInstance]


def variances(make: Make, *, k: int, start: float, looks: Sequence[int], runs: int) -> Floats:
    """The variance over the k instances after so many updates by noise of variance 2: a row a run, a column a look."""
    found = np.empty((runs, len(looks)))
    for run in range(runs):
        randomness = SeededRandomness(seed=1000 * k + run)
        values = np.sqrt(start) * randomness.stream("values").normals(k * WEIGHTS).reshape(k, WEIGHTS)
        strategy, noise = make(Pool(values, randomness=randomness)), randomness.stream("noise")
        for number in range(max(looks) + 1):
            if number in looks:
                instances = strategy.pool.snapshot().instances
                found[run, looks.index(number)] = instances.var(axis=0, ddof=1).mean()
            handout = strategy.draw()
            strategy.discard(handout, handout.weights + noise.laplaces(WEIGHTS))
    return found


def agrees(sample: Floats, mean: float) -> bool:
    return float(stats.ttest_1samp(sample, mean).pvalue) > ODD


@pytest.mark.slow
@pytest.mark.parametrize(("k", "updates", "runs"), [(2, 40, 400), (10, 150, 150), (30, 500, 150)])
def test_theorem_1_the_variance_over_the_instances_stays(k: int, updates: int, runs: int) -> None:
    stable = stable_variance(k, 2.0)
    assert stable == k  # (k / 2) sigma^2, and here sigma^2 = 2
    (sample,) = variances(DrawAndDiscard, k=k, start=stable, looks=[updates], runs=runs).T
    assert agrees(sample, stable)
    assert not agrees(sample, stable * 2 / 3)
    assert not agrees(sample, stable * 3 / 2)


@pytest.mark.slow
def test_the_variance_comes_back_as_fast_as_it_should() -> None:
    """From none at all: what is missing shrinks by 1 - 2 / k^2 an update."""
    looks = [10, 50, 150]
    found = variances(DrawAndDiscard, k=10, start=0.0, looks=looks, runs=150)
    for sample, number in zip(found.T, looks, strict=True):
        expected = 10 * (1 - (1 - 2 / 100) ** number)
        assert agrees(sample, expected)
        assert not agrees(sample, expected * 2 / 3)
        assert not agrees(sample, expected * 3 / 2)


@pytest.mark.slow
def test_without_discarding_the_variance_grows_without_bound() -> None:
    """Each instance walks on its own: sigma^2 / k an update, for ever."""
    looks = [500, 1000, 2000]
    found = variances(SameInstance, k=10, start=0.0, looks=looks, runs=20)
    for sample, number in zip(found.T, looks, strict=True):
        assert agrees(sample, number * 2 / 10)
        assert not agrees(sample, stable_variance(10, 2.0))


def survivors(strategy: Strategy, pool: Pool) -> float:
    """Which share of the instances holds the first update when all have come to agree."""
    handout = strategy.draw()
    strategy.discard(handout, handout.weights + 1.0)
    while np.ptp(pool.snapshot().instances) > 0:
        handout = strategy.draw()
        strategy.discard(handout, handout.weights)
    return float(pool.weights()[0])


@pytest.mark.slow
@pytest.mark.parametrize(("k", "runs"), [(2, 800), (4, 800), (10, 1200)])
def test_lemma_2_an_update_survives_with_probability_1_in_k(k: int, runs: int) -> None:
    kept = 0
    for run in range(runs):
        pool = Pool(np.zeros((k, 1)), randomness=SeededRandomness(seed=run + 10_000 * k))
        kept += round(survivors(DrawAndDiscard(pool), pool))
    assert stats.binomtest(kept, runs, 1 / k).pvalue > ODD
    assert stats.binomtest(kept, runs, min(1 / k * 2, 0.99)).pvalue < ODD
    assert stats.binomtest(kept, runs, 1 / k / 2).pvalue < ODD


@pytest.mark.parametrize("k", [2, 3, 10, 30])
def test_lemma_2_in_exact_numbers(k: int) -> None:
    """The chain over how many instances hold the update: up or down with (k - i) i / k^2 each."""
    steps = np.zeros((k + 1, k + 1))
    for held in range(k + 1):
        move = (k - held) * held / k**2
        steps[held, held] = 1 - 2 * move
        if 0 < held < k:
            steps[held, held - 1] = steps[held, held + 1] = move
    inner = steps[1:k, 1:k]
    survives = np.linalg.solve(np.eye(k - 1) - inner, steps[1:k, k])
    assert survives[0] == pytest.approx(1 / k)


DIGITS = load_digits().train
FEATURES = np.asarray(DIGITS.features, np.float64).reshape(len(DIGITS.labels), -1)
FEATURES /= FEATURES.max()
RESPONSES = one_hot(np.asarray(DIGITS.labels), 10)
MODEL = Glm(features=64, link=MULTINOMIAL, outputs=10)
ZEROS = np.zeros(MODEL.size)


def losses(make: Callable[[Pool, SeededRandomness], Strategy], *, k: int, updates: int = 700) -> Floats:
    """The training loss after so many updates by devices of ten digits each, for a few seeds."""
    found = []
    for seed in range(5):
        randomness = SeededRandomness(seed=seed)
        strategy = make(Pool(np.tile(ZEROS, (k, 1)), randomness=randomness), randomness)
        for device in (randomness.stream("devices").bits(updates) % np.uint64(150)).tolist():
            own, handout = slice(10 * device, 10 * device + 10), strategy.draw()
            gradient = MODEL.gradient(handout.weights, FEATURES[own], RESPONSES[own])
            strategy.discard(handout, handout.weights - 0.05 * gradient)
        found.append(MODEL.loss(strategy.weights(), FEATURES, RESPONSES))
    return np.array(found)


def overlap(first: Floats, second: Floats) -> bool:
    """Whether two curves end together: within the scatter of seeds, and within 5 % of the loss."""
    same = float(stats.ttest_ind(first, second).pvalue) > 1e-3
    return same and bool(abs(first.mean() / second.mean() - 1) < 0.05)


@pytest.mark.slow
def test_section_v_what_is_equal_and_what_is_worse() -> None:
    k = 5
    discard = losses(lambda pool, _: DrawAndDiscard(pool), k=k)
    assert overlap(discard, losses(lambda pool, _: SameInstance(pool), k=k))
    assert overlap(discard, losses(lambda _, randomness: AcceptOneIn(ZEROS, updates=k, randomness=randomness), k=k))
    assert overlap(discard, losses(lambda *_: Batching(ZEROS, batch=k), k=k))
    averaged = losses(lambda pool, _: DrawAndDiscard(pool, merge=average), k=k)
    assert not overlap(discard, averaged)
    assert averaged.mean() > 1.1 * discard.mean()
    averaged_in_place = losses(lambda pool, _: SameInstance(pool, merge=average), k=k)
    assert averaged_in_place.mean() > 1.1 * discard.mean()
    assert overlap(averaged, averaged_in_place)


@pytest.mark.slow
def test_section_v_ten_instances_are_batches_of_ten_devices() -> None:
    ten = losses(lambda pool, _: DrawAndDiscard(pool), k=10)
    assert overlap(ten, losses(lambda *_: Batching(ZEROS, batch=10), k=10))
    assert not overlap(ten, losses(lambda *_: Batching(ZEROS, batch=100), k=10))
    assert not overlap(ten, losses(lambda pool, _: DrawAndDiscard(pool), k=1))
