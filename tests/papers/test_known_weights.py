"""The model with known weights: what the server states, what devices hold, and how fast the weights come back."""

import pytest

from incrowd._random import SeededRandomness
from papers.ddml.known_weights import TRUTH, Population, specification, truth


def population(size: int, *, seed: int = 1) -> Population:
    return Population.sample(size, SeededRandomness(seed).stream("examples"))


def test_the_server_alone_states_33_weights() -> None:
    stated = specification()
    crosses = [name for name in stated.columns if ":" in name]
    assert (stated.size, len(stated.columns) - len(crosses), len(crosses)) == (33, 8, 24)
    assert set(stated.columns) == set(TRUTH)
    assert (stated.instances, stated.gamma, stated.noise) == (30, 0.005, "none")
    assert truth(stated)[:3].tolist() == [0.34, -1.18, 1.05]


def test_about_46_percent_are_positive_and_the_truth_is_right_as_often_as_in_the_paper() -> None:
    drawn = population(100_000)
    assert drawn.o.mean() == pytest.approx(0.46, abs=0.01)
    outputs = drawn.features() @ truth(specification())[1:] + truth(specification())[0]
    assert ((outputs > 0) == drawn.o).mean() == pytest.approx(0.79, abs=0.01)
