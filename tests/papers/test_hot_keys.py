"""Writes to keys against a simulation, and the paper's own case."""

import numpy as np
import pytest

from papers.ddml.hot_keys import Store, busiest, keys

SECONDS = 20_000


def simulated(instances: int, load: float) -> list[int]:
    """The busiest key's writes in many seconds, each update going to a random key."""
    generator = np.random.Generator(np.random.SFC64(1))
    writes = [generator.integers(instances, size=count) for count in generator.poisson(load, SECONDS)]
    return [int(np.bincount(one, minlength=1).max(initial=0)) for one in writes]


@pytest.mark.parametrize(("instances", "load", "limit"), [(3, 20.0, 10), (20, 100.0, 12), (1, 5.0, 6)])
def test_calm_seconds_are_as_frequent_as_in_a_simulation(instances: int, load: float, limit: int) -> None:
    calm = np.mean([one <= limit for one in simulated(instances, load)])
    claimed = Store(writes_a_key=limit).calm(instances, load)
    error = np.sqrt(claimed * (1 - claimed) / SECONDS)
    assert abs(calm - claimed) < 4 * error
    assert abs(calm - Store(writes_a_key=limit + 1).calm(instances, load)) > 4 * error


def test_the_busiest_key_is_exceeded_in_one_second_of_a_thousand() -> None:
    found = simulated(20, 200.0)
    level = busiest(20, 200.0)
    assert np.mean([one > level for one in found]) <= 1.5e-3
    assert np.mean([one > level - 1 for one in found]) > 1e-3 / 2


def test_three_instances_are_hot_at_the_papers_load_and_twenty_are_not_on_average() -> None:
    rows = {row["instances"]: row for row in keys(Store(), loads=[200.0])}
    assert rows[3]["calm_seconds"] < 1e-6
    assert rows[20]["writes_per_key"] == 10
    assert rows[20]["busiest_key"] > 10
    assert rows[100]["calm_seconds"] > 0.99
