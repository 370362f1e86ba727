import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd._random import Integers, SeededRandomness
from incrowd.drawdiscard.pool import Picks
from incrowd.drawdiscard.simulation import Coins, Genealogy, draw_and_discard, toss
from tests.statistics import ODD, chi_square

RANDOM = SeededRandomness(5)


def ancestry(coins: Coins) -> list[list[set[int]]]:
    """The slow way: after each number of updates, for each instance the set of updates that it descends from."""
    history = [[set[int]() for _ in range(coins.instances)]]
    for update in range(coins.updates):
        pool = list(history[-1])
        place = int(coins.replaced[update])
        if place >= 0:
            kept = pool[place] if coins.merge < 1 else set()
            pool[place] = history[int(coins.seen[update])][int(coins.drawn[update])] | kept | {update}
        history.append(pool)
    return history


@given(
    st.integers(1, 6), st.integers(1, 60), st.integers(1, 5), st.sampled_from([1.0, 0.5, 0.01]), st.integers(0, 1000)
)
@settings(max_examples=80, deadline=None)
def test_what_is_needed_are_the_ancestors(k: int, updates: int, in_flight: int, merge: float, seed: int) -> None:
    coins = draw_and_discard(
        instances=k, updates=updates, randomness=SeededRandomness(seed), in_flight=in_flight, merge=merge
    )
    moments = [0, updates // 2, updates]
    history = ancestry(coins)
    expected = set[int]().union(*(instance for moment in moments for instance in history[moment]))
    assert set(Genealogy(coins, moments).needed.tolist()) == expected


def test_the_choices_are_those_that_a_pool_makes_one_by_one() -> None:
    picks = Picks(RANDOM, "draw")
    one_by_one = [picks.among(7) for _ in range(Picks.BLOCK + 100)]
    assert toss("draw", 7, len(one_by_one), RANDOM).tolist() == one_by_one
    assert toss("draw", 7, 0, RANDOM).tolist() == []
    counts = np.bincount(toss("discard", 7, 70_000, RANDOM))
    assert chi_square(counts, np.full(7, 1 / 7)) > ODD
    assert chi_square(counts, np.array([0.16, *np.full(6, 0.14)])) < ODD


def test_devices_in_flight_have_seen_what_had_arrived_when_they_drew() -> None:
    flying, updates = 8, 20_000
    coins = draw_and_discard(instances=3, updates=updates, randomness=RANDOM, in_flight=flying)
    late: Integers = np.arange(updates) - coins.seen
    assert (late >= 0).all()
    assert (coins.seen == 0).sum() == flying  # those that drew at the start
    # All others draw when one arrives, one at a time, and wait for a geometric number of arrivals.
    later = np.sort(coins.seen[coins.seen > 0])
    assert (np.diff(later) > 0).all()
    waits = np.bincount(late[coins.seen > 0], minlength=60)[:60]
    geometric = (1 - 1 / flying) ** np.arange(60) / flying
    assert chi_square(waits, geometric) > ODD
    assert chi_square(waits, (1 - 1 / 10) ** np.arange(60) / 10) < ODD
