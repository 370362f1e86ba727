from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.drawdiscard.glm import MULTINOMIAL, Glm
from incrowd.drawdiscard.pool import Pool
from incrowd.drawdiscard.simulation import (
    GlmGradients,
    Updates,
    draw_and_discard,
    gammas,
    same_instance,
    simulate,
    with_intercept,
)
from incrowd.privacy.mechanism.device import Mechanism
from tests.drawdiscard import mail

RANDOM = SeededRandomness(8)
DEVICES, EXAMPLES, FEATURES, OUTPUTS = 40, 6, 9, 4
UPDATES, RATE = 300, 0.3
CONSTANT = np.full(UPDATES, RATE)
MOMENTS = [300, 0, 120, 121]
MODEL = Glm(features=FEATURES, outputs=OUTPUTS, link=MULTINOMIAL)
GENERATOR = np.random.Generator(np.random.SFC64(2))
X = GENERATOR.random((DEVICES, EXAMPLES, FEATURES))
LABELS = GENERATOR.integers(OUTPUTS, size=(DEVICES, EXAMPLES))
TARGETS = np.eye(OUTPUTS)[LABELS]
ORDER: Integers = GENERATOR.integers(DEVICES, size=UPDATES)
NOISE: NDArray[np.float32] = GENERATOR.laplace(0, 0.1, (UPDATES, MODEL.size)).astype(np.float32)


def tabulated(gradient: NDArray[np.float32], update: int) -> NDArray[np.float32]:
    """Noise that is the same for the same update, whatever else is computed."""
    noised: NDArray[np.float32] = gradient + NOISE[update]
    return noised


def mechanism(clip: float = 0.05, **given: object) -> Mechanism:
    return Mechanism(size=MODEL.size, clip=clip, epsilon=1.0, **{"privacy": "feature", **given})  # type: ignore[arg-type]  # a table of values


def updates(rates: float | Floats = RATE) -> Updates:
    gradients = GlmGradients(MODEL, with_intercept(X), LABELS)
    return Updates(gradients=gradients, mechanism=mechanism(), devices=ORDER, rates=rates, noise=tabulated)


def plain_step(weights: Floats, update: int, rate: float = RATE) -> Floats:
    device = ORDER[update]
    gradient = np.clip(MODEL.gradient(weights, X[device], TARGETS[device]), -0.05, 0.05)
    updated: Floats = weights - rate * (gradient + NOISE[update])
    return updated


def plain_loop(pool: Pool, moments: Sequence[int], rates: Floats = CONSTANT) -> Floats:
    """The slow way, over a pool as a server keeps it."""
    seen = {0: pool.weights()}
    for update in range(UPDATES):
        pool.discard(plain_step(pool.draw().astype(np.float64), update, float(rates[update])))
        seen[update + 1] = pool.weights()
    return np.stack([seen[moment] for moment in moments])


def pool(k: int) -> Pool:
    return Pool.initial(np.zeros(MODEL.size), instances=k, update_variance=0.01, randomness=RANDOM)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_each_update_may_replace_what_it_drew(k: int) -> None:
    start = pool(k).instances
    coins = same_instance(instances=k, updates=UPDATES, randomness=RANDOM)
    held, seen = start.astype(np.float64), [start.mean(axis=0, dtype=np.float64)]
    for update in range(UPDATES):
        held[coins.drawn[update]] = plain_step(held[coins.drawn[update]], update)
        seen.append(held.mean(axis=0))
    found = simulate(updates(), coins, start=start, moments=MOMENTS)
    np.testing.assert_allclose(found, np.stack([seen[moment] for moment in MOMENTS]), atol=2e-5)


@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("merge", [1.0, 0.3])
def test_it_is_a_server_s_pool_with_any_share_and_falling_steps(k: int, merge: float) -> None:
    asked = mail.asked(gamma=RATE, merge=merge, falls_every=50, falls_by=0.7, instances=k)
    coins = draw_and_discard(instances=k, updates=UPDATES, randomness=RANDOM, merge=merge)
    rates = gammas(asked, coins.seen)
    assert rates.tolist() == [asked.gamma_of(update // 50) for update in range(UPDATES)]
    assert rates[-1] < 0.5 * rates[0]
    start = pool(k).instances
    found = simulate(updates(rates), coins, start=start, moments=MOMENTS)
    plain = plain_loop(Pool(start, randomness=RANDOM, merge=merge), MOMENTS, rates)
    np.testing.assert_allclose(found, plain, atol=2e-5)
