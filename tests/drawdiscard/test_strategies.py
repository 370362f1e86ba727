import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.pool import Pool
from incrowd.drawdiscard.strategies import AcceptOneIn, Batching, DrawAndDiscard, SameInstance, Strategy, average
from tests.statistics import ODD, fair

SEEDED = SeededRandomness(seed=8)


def pool_of(k: int) -> Pool:
    return Pool(np.arange(float(k))[:, None], randomness=SEEDED)


def every_strategy() -> list[Strategy]:
    return [
        DrawAndDiscard(pool_of(3)),
        DrawAndDiscard(pool_of(3), merge=average),
        SameInstance(pool_of(3)),
        SameInstance(pool_of(3), merge=average),
        AcceptOneIn([1.0], updates=3, randomness=SEEDED),
        Batching([1.0], batch=3),
    ]


@pytest.mark.parametrize("strategy", every_strategy())
def test_drawing_changes_nothing_and_nobody_can_write_to_a_pool(strategy: Strategy) -> None:
    before = strategy.weights()
    drawn = strategy.draw().weights
    if drawn.flags.writeable:
        drawn[:] = 77.0
    np.testing.assert_array_equal(strategy.weights(), before)
    strategy.weights()[:] = 77.0
    np.testing.assert_array_equal(strategy.weights(), before)


@pytest.mark.parametrize("strategy", every_strategy())
def test_many_updates_to_one_place_bring_every_strategy_there(strategy: Strategy) -> None:
    for _ in range(300):
        strategy.discard(strategy.draw(), np.array([5.0]))
    assert strategy.weights()[0] == pytest.approx(5.0)


def test_draw_and_discard_forgets_which_instance_was_drawn() -> None:
    strategy = DrawAndDiscard(Pool(np.zeros((4, 1)), randomness=SEEDED))
    same = 0
    for number in range(1, 4001):
        handout = strategy.draw()
        strategy.discard(handout, np.array([float(number)]))
        same += strategy.pool.instance(handout.instance)[0] == number
    assert fair(same, 4000, chance=1 / 4) > ODD
    assert fair(same, 4000, chance=1 / 3) < ODD
