import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.correlated import CorrelatedNoise, inverse, sensitivity
from incrowd.privacy.mechanism.grid import padded
from tests.privacy.receipts import paid

ROUNDS = 6
GROUPS = pytest.mark.parametrize("groups", [1, 3])


def correlated(groups: int = 3, **changes: Any) -> CorrelatedNoise:
    stated = {"noise_multiplier": 2.0, "clip_norm": 0.5, "contributions_bound": 50, "rounds": ROUNDS, "groups": groups}
    return CorrelatedNoise(**stated | changes)


def run(noise: CorrelatedNoise, totals: Floats, source: Randomness) -> Floats:
    """All rounds' noised sums, a row a round."""
    state, rows = noise.init(totals.shape[1]), []
    for total in totals:
        at = "noise", state.round
        noised, state = noise.add(total, state=state, receipt=paid(noise, randomness=source), at=at)
        rows.append(noised.values)
    return np.array(rows)


def divide(noise: CorrelatedNoise) -> Floats:
    """C^-1, dense."""
    return np.array(toeplitz(inverse(noise.column), np.zeros(ROUNDS)))


@GROUPS
def test_the_streamed_noise_is_the_dense_product(groups: int) -> None:
    noise, source = correlated(groups), SeededRandomness(1)
    step, scale = noise.scale(40)
    streams = [source.stream("noise", round) for round in range(ROUNDS)]
    fresh = np.array([grid.sample_noise(scale=scale / step, size=40, stream=stream) for stream in streams])
    expected = divide(noise) @ fresh
    streamed = run(noise, np.zeros((ROUNDS, 40)), source) / step
    assert np.array_equal(streamed, np.rint(streamed))
    assert np.abs(streamed - expected).max() <= 0.5 * np.abs(divide(noise)[:, 0]).sum() + 1e-3
    assert np.abs(streamed).max() > 1e6


@GROUPS
@pytest.mark.parametrize("seed", range(3))
def test_what_is_learnt_about_one_client_is_within_the_sensitivity_that_the_noise_hides(groups: int, seed: int) -> None:
    """From the releases, suppose the sums with and without one client: how far apart is the fresh noise they imply?"""
    noise, size = correlated(groups), 30
    generator = np.random.Generator(np.random.PCG64(seed))
    totals = generator.uniform(-0.1, 0.1, size=(ROUNDS, size))
    direction = generator.normal(size=size)
    others = totals.copy()
    others[::groups] -= noise.clip_norm * direction / np.linalg.norm(direction)
    released = run(noise, totals, SeededRandomness(seed))
    step, scale = noise.scale(size)
    moves = (implied_fresh_noise(noise, released, totals) - implied_fresh_noise(noise, released, others)) * step
    hidden = scale / noise.noise_multiplier
    assert 0.99999 * noise.sensitivity * noise.clip_norm < np.linalg.norm(moves) <= hidden


def implied_fresh_noise(noise: CorrelatedNoise, released: Floats, totals: Floats) -> Floats:
    step = noise.scale(totals.shape[1])[0]
    memory: tuple[Floats, ...] = ()
    fresh = []
    for row in np.rint(released / step) - np.rint(totals / step):
        fresh.append(row + np.rint(noise.echo(memory, row.size)))
        memory = noise.remember(memory, row)
    return np.array(fresh)


@GROUPS
@pytest.mark.parametrize("size", [1, 1000, 532_000])
def test_the_price_of_floating_point_is_paid_and_small(groups: int, size: int) -> None:
    noise = correlated(groups)
    needed = noise.sensitivity * padded(noise.clip_norm, contributions_bound=50)
    step, scale = noise.scale(size)
    assert needed + step * math.sqrt(ROUNDS * size) <= scale / noise.noise_multiplier <= needed * (1 + 1e-5)
    assert noise.sensitivity == sensitivity(noise.column, groups)


def test_a_state_does_not_show_its_memory() -> None:
    noise = correlated(2)
    _, state = noise.add(np.zeros(5), state=noise.init(5), receipt=paid(noise), at=("noise", 0))
    assert repr(state) == "NoiseState(round=1, size=5)"


def test_a_round_beyond_the_last_is_refused() -> None:
    noise = correlated(2)
    with pytest.raises(ConfigError, match="round = 6: this noise ends after 6 rounds"):
        run(noise, np.zeros((ROUNDS + 1, 2)), SystemRandomness())


def test_a_sum_of_another_size_is_refused() -> None:
    noise = correlated(2)
    with pytest.raises(DataError, match="does not fit a state of 3"):
        noise.add(np.zeros(4), state=noise.init(3), receipt=paid(noise), at=("noise", 0))


def test_noise_whose_rounding_errors_would_show_is_refused() -> None:
    noise = correlated(1000, noise_multiplier=2e6, rounds=1000)
    with pytest.raises(ConfigError, match="rounding errors of so much noise would show"):
        noise.scale(1)
    with pytest.raises(ConfigError, match="does not fit one 64-bit grid"):
        correlated(2, noise_multiplier=1e10).scale(1)


# The strategies

falling_columns = st.lists(st.floats(0, 1), min_size=7, max_size=7).map(lambda rest: np.array([1, *sorted(rest)[::-1]]))


def dense(column: Floats) -> Floats:
    """The matrix whose first column this is."""
    return np.array(toeplitz(column, np.zeros(len(column))))


def patterns(rounds: int, apart: int) -> list[tuple[int, ...]]:
    """Every set of rounds that one client may take part in, found by trying them all."""
    subsets = (chosen for size in range(rounds) for chosen in itertools.combinations(range(rounds), size + 1))
    return [chosen for chosen in subsets if all(b - a >= apart for a, b in itertools.pairwise(chosen))]


@given(falling_columns, st.integers(1, 9))
def test_sensitivity_is_the_worst_of_all_patterns(column: Floats, apart: int) -> None:
    worst = max(np.linalg.norm(dense(column)[:, pattern].sum(axis=1)) for pattern in patterns(8, apart))
    assert sensitivity(column, apart) == pytest.approx(worst, rel=1e-12)


@given(st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 40))
def test_an_echo_errs_by_no_more_than_its_bound(groups: int, seed: int, rounds: int) -> None:
    its = correlated(groups, rounds=rounds)
    noises = np.random.Generator(np.random.PCG64(seed)).integers(-(2**50), 2**50, rounds).astype(np.float64)
    memory: tuple[Floats, ...] = ()
    for noise in noises:
        memory = its.remember(memory, np.array([noise]))
    exact = sum(
        (
            coefficient * Fraction(noise)
            for coefficient, noise in zip(map(Fraction, its.column[1:].tolist()), noises[::-1], strict=False)
        ),
        Fraction(0),
    )
    error = abs(Fraction(its.echo(memory, 1)[0]) - exact)
    assert error <= Fraction(its.rounding) * Fraction(np.abs(noises).max())


def test_the_square_root_adds_up_when_it_is_squared_and_never_rises() -> None:
    root = correlated(9, rounds=9).column
    np.testing.assert_allclose(dense(root) @ dense(root), np.tril(np.ones((9, 9))), atol=1e-15)
    assert correlated(3).column.tolist() == [*root[:3], 0, 0, 0] == [1.0, 0.5, 0.375, 0, 0, 0]


@pytest.mark.parametrize("field", ["noise_multiplier", "clip_norm", "contributions_bound", "rounds", "groups"])
def test_bad_numbers_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        correlated(**{field: 0})
