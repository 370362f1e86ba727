"""What Pihur et al. (2018) prove and observe, each with a control that must not hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.pool import Pool, stable_variance

ODD = 1e-6
WEIGHTS = 24


def variances(*, k: int, start: float, looks: Sequence[int], runs: int) -> Floats:
    """The variance over the k instances after so many updates by noise of variance 2: a row a run, a column a look."""
    found = np.empty((runs, len(looks)))
    for run in range(runs):
        randomness = SeededRandomness(seed=1000 * k + run)
        values = np.sqrt(start) * randomness.stream("values").normals(k * WEIGHTS).reshape(k, WEIGHTS)
        pool, noise = Pool(values, randomness=randomness), randomness.stream("noise")
        for number in range(max(looks) + 1):
            if number in looks:
                found[run, looks.index(number)] = pool.instances.var(axis=0, ddof=1).mean()
            pool.discard(pool.draw() + noise.laplaces(WEIGHTS))
    return found


def agrees(sample: Floats, mean: float) -> bool:
    return float(stats.ttest_1samp(sample, mean).pvalue) > ODD


@pytest.mark.slow
@pytest.mark.parametrize(("k", "updates", "runs"), [(2, 40, 400), (10, 150, 150), (30, 500, 150)])
def test_theorem_1_the_variance_over_the_instances_stays(k: int, updates: int, runs: int) -> None:
    stable = stable_variance(k, 2.0)
    assert stable == k  # (k / 2) sigma^2, and here sigma^2 = 2
    (sample,) = variances(k=k, start=stable, looks=[updates], runs=runs).T
    assert agrees(sample, stable)
    assert not agrees(sample, stable * 2 / 3)
    assert not agrees(sample, stable * 3 / 2)


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
