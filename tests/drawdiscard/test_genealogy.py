import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd._random import Integers, SeededRandomness
from incrowd.drawdiscard.genealogy import Coins, Genealogy, accept_one_in, draw_and_discard, same_instance, toss
from incrowd.drawdiscard.pool import Picks
from incrowd.errors import ConfigError
from tests.statistics import ODD, chi_square, fair

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


@pytest.mark.slow
def test_one_in_k_updates_survives_in_the_long_run() -> None:
    """Lemma 2, over independent pools: the first update of each, once all instances have one ancestor."""
    k, updates, pools = 5, 250, 2_000
    survived = sum(
        0 in Genealogy(draw_and_discard(instances=k, updates=updates, randomness=SeededRandomness(n)), [updates]).needed
        for n in range(pools)
    )
    assert fair(survived, pools, chance=1 / k) > ODD
    assert fair(survived, pools, chance=2 / 3 / k) < ODD
    assert fair(survived, pools, chance=3 / 2 / k) < ODD


def test_little_is_needed_where_little_survives() -> None:
    coins = draw_and_discard(instances=20, updates=40_000, randomness=RANDOM)
    needed = len(Genealogy(coins, [40_000]).needed)
    assert 0.9 < needed / (40_000 / 20 + 20 * np.log(40_000 / 20)) < 1.1
    assert len(Genealogy(coins, []).needed) == 0
    assert len(Genealogy(coins, [0]).needed) == 0


@pytest.mark.parametrize("flying", [1, 5, 60])
def test_devices_in_flight_make_lines_of_descent_shorter(flying: int) -> None:
    """Back from an update to its parent it is k arrivals, and those that came between the draw and its return."""
    coins = draw_and_discard(instances=10, updates=100_000, randomness=RANDOM, in_flight=flying)
    line, length = int(Genealogy(coins, [100_000]).looked_at[0, 0]), 0
    parents = Genealogy(coins, [100_000]).parents
    while line >= 10:
        line, length = int(parents[line - 10]), length + 1
    assert length == pytest.approx(100_000 / (10 + flying - 1), rel=0.06)


def test_nothing_is_lost_where_each_update_replaces_what_it_drew() -> None:
    coins = same_instance(instances=20, updates=500, randomness=RANDOM)
    assert len(Genealogy(coins, [500]).needed) == 500


def test_one_in_k_is_accepted() -> None:
    coins = accept_one_in(10, updates=20_000, randomness=RANDOM)
    needed = Genealogy(coins, [20_000]).needed
    assert fair(len(needed), 20_000, chance=0.1) > ODD
    assert fair(len(needed), 20_000, chance=0.12) < ODD
    assert (coins.replaced[needed] == 0).all()


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


def test_a_moment_after_the_end_is_refused() -> None:
    coins = draw_and_discard(instances=3, updates=5, randomness=RANDOM)
    with pytest.raises(ConfigError, match="moment = 6"):
        Genealogy(coins, [6])
    with pytest.raises(ConfigError, match="-1"):
        Genealogy(coins, [-1])
