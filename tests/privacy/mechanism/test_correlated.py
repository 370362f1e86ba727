import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.correlated import (
    Banded,
    CorrelatedNoise,
    Participation,
    inverse,
    sensitivity,
    square_root,
)
from incrowd.privacy.mechanism.grid import padded
from tests.privacy.receipts import paid
from tests.statistics import ks, rejects_wrong_scale

ROUNDS = 6
SOURCES = pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(6)], ids=["system", "seeded"])
STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [
        Banded(coefficients=(1.0,)),
        Banded(coefficients=(1.0, 0.6, 0.3)),
    ],
    ids=["one band", "three bands"],
)


def correlated(strategy: Banded, *, multiplier: float = 2.0, clip_norm: float = 0.5) -> CorrelatedNoise:
    return CorrelatedNoise(
        noise_multiplier=multiplier,
        clip_norm=clip_norm,
        contributions_bound=50,
        participation=Participation(rounds=ROUNDS, min_separation=3),
        strategy=strategy,
    )


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
    return np.array(toeplitz(inverse(noise.strategy.column(ROUNDS)), np.zeros(ROUNDS)))


@STRATEGIES
def test_the_streamed_noise_is_the_dense_product(strategy: Banded) -> None:
    noise, source = correlated(strategy), SeededRandomness(1)
    step, scale = noise.scale(40)
    streams = [source.stream("noise", round) for round in range(ROUNDS)]
    fresh = np.array([grid.sample_noise(scale=scale / step, size=40, stream=stream) for stream in streams])
    expected = divide(noise) @ fresh
    streamed = run(noise, np.zeros((ROUNDS, 40)), source) / step
    assert np.array_equal(streamed, np.rint(streamed))
    assert np.abs(streamed - expected).max() <= 0.5 * np.abs(divide(noise)[:, 0]).sum() + 1e-3
    assert np.abs(streamed).max() > 1e6


@SOURCES
@STRATEGIES
def test_the_covariance_over_rounds_is_that_of_the_inverse(strategy: Banded, source: Randomness) -> None:
    noise, size = correlated(strategy), 40_000
    rows = run(noise, np.zeros((ROUNDS, size)), source) / (noise.noise_multiplier * noise.sensitivity * noise.clip_norm)
    expected = divide(noise) @ divide(noise).T
    assert worst_error(rows, expected) < 5.5
    assert worst_error(rows * 2 / 3, expected) > 10
    assert worst_error(rows * 3 / 2, expected) > 10
    if strategy != Banded(coefficients=(1.0,)):
        assert worst_error(rows, np.eye(ROUNDS)) > 10
    assert rejects_wrong_scale(ks("norm"), (np.linalg.inv(divide(noise)) @ rows).ravel())


def worst_error(rows: Floats, expected: Floats) -> float:
    """The largest difference of the sample's covariance from the expected one, in standard errors."""
    variances = np.diag(expected)
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / rows.shape[1])
    return float(np.max(np.abs(rows @ rows.T / rows.shape[1] - expected) / errors))


@STRATEGIES
@pytest.mark.parametrize("seed", range(3))
def test_what_is_learnt_about_one_client_is_within_the_sensitivity_that_the_noise_hides(
    strategy: Banded, seed: int
) -> None:
    """From the releases, suppose the sums with and without one client: how far apart is the fresh noise they imply?"""
    noise, size = correlated(strategy), 30
    generator = np.random.Generator(np.random.PCG64(seed))
    totals = generator.uniform(-0.1, 0.1, size=(ROUNDS, size))
    direction = generator.normal(size=size)
    others = totals.copy()
    others[[0, 3]] -= noise.clip_norm * direction / np.linalg.norm(direction)
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
        fresh.append(row + np.rint(noise.strategy.echo(memory, row.size)))
        memory = noise.strategy.remember(memory, row)
    return np.array(fresh)


@STRATEGIES
@pytest.mark.parametrize("size", [1, 1000, 532_000])
def test_the_price_of_floating_point_is_paid_and_small(strategy: Banded, size: int) -> None:
    noise = correlated(strategy)
    needed = noise.sensitivity * padded(noise.clip_norm, contributions_bound=50)
    step, scale = noise.scale(size)
    assert needed + step * math.sqrt(ROUNDS * size) <= scale / noise.noise_multiplier <= needed * (1 + 1e-5)
    assert noise.sensitivity == sensitivity(strategy.column(ROUNDS), noise.participation)


def test_a_state_does_not_show_its_memory() -> None:
    noise = correlated(Banded(coefficients=(1.0, 0.5)))
    _, state = noise.add(np.zeros(5), state=noise.init(5), receipt=paid(noise), at=("noise", 0))
    assert repr(state) == "NoiseState(round=1, size=5)"


def test_a_round_beyond_the_last_is_refused() -> None:
    noise = correlated(Banded(coefficients=(1.0, 0.5)))
    with pytest.raises(ConfigError, match="round = 6: this noise ends after 6 rounds"):
        run(noise, np.zeros((ROUNDS + 1, 2)), SystemRandomness())


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (np.zeros(4), "does not fit a state of 3"),
        (np.full(3, np.nan), "not finite"),
        (np.full(3, 20.0), "is not 50 contributions of at most 0.5"),
    ],
)
def test_sums_that_cannot_be_are_refused(total: Floats, words: str) -> None:
    noise = correlated(Banded(coefficients=(1.0, 0.5)))
    with pytest.raises(DataError, match=words):
        noise.add(total, state=noise.init(3), receipt=paid(noise, randomness=SystemRandomness()), at=("noise", 0))


def test_noise_whose_rounding_errors_would_show_is_refused() -> None:
    noise = CorrelatedNoise(
        noise_multiplier=1e5,
        clip_norm=1.0,
        contributions_bound=10,
        participation=Participation(rounds=1000, min_separation=1000),
        strategy=Banded(coefficients=(1.0,) * 1000),
    )
    with pytest.raises(ConfigError, match="rounding errors of so much noise would show"):
        noise.scale(1)
    with pytest.raises(ConfigError, match="does not fit one 64-bit grid"):
        correlated(Banded(coefficients=(1.0, 0.5)), multiplier=1e10).scale(1)


# The strategies

MATRICES: list[Banded] = [
    Banded(coefficients=(1.0,)),
    Banded(coefficients=(1.0, 0.7, 0.3, 0.1)),
    Banded(coefficients=(1.0, 1.0)),
]
EACH_MATRIX = pytest.mark.parametrize("strategy", MATRICES, ids=repr)
falling_columns = st.lists(st.floats(0, 1), min_size=7, max_size=7).map(lambda rest: np.array([1, *sorted(rest)[::-1]]))


def dense(column: Floats) -> Floats:
    """The matrix whose first column this is."""
    return np.array(toeplitz(column, np.zeros(len(column))))


def patterns(participation: Participation) -> list[tuple[int, ...]]:
    """Every set of rounds that one client may take part in, found by trying them all."""
    rounds = range(participation.rounds)
    subsets = (chosen for size in rounds for chosen in itertools.combinations(rounds, size + 1))
    return [
        chosen
        for chosen in subsets
        if all(b - a >= participation.min_separation for a, b in itertools.pairwise(chosen))
    ]


@given(falling_columns, st.integers(1, 9))
def test_sensitivity_is_the_worst_of_all_patterns(column: Floats, apart: int) -> None:
    participation = Participation(rounds=8, min_separation=apart)
    worst = max(np.linalg.norm(dense(column)[:, pattern].sum(axis=1)) for pattern in patterns(participation))
    assert sensitivity(column, participation) == pytest.approx(worst, rel=1e-12)


@EACH_MATRIX
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_an_echo_errs_by_no_more_than_its_bound(strategy: Banded, seed: int, rounds: int) -> None:
    noises = np.random.Generator(np.random.PCG64(seed)).integers(-(2**50), 2**50, rounds).astype(np.float64)
    memory: tuple[Floats, ...] = ()
    for noise in noises:
        memory = strategy.remember(memory, np.array([noise]))
    exact = sum(
        (
            coefficient * Fraction(noise)
            for coefficient, noise in zip(map(Fraction, strategy.coefficients[1:]), noises[::-1], strict=False)
        ),
        Fraction(0),
    )
    error = abs(Fraction(strategy.echo(memory, 1)[0]) - exact)
    assert error <= Fraction(strategy.rounding) * Fraction(np.abs(noises).max())


def test_the_square_root_adds_up_when_it_is_squared() -> None:
    square = np.array(dense(np.array(square_root(9).coefficients)) @ dense(np.array(square_root(9).coefficients)))
    np.testing.assert_allclose(square, np.tril(np.ones((9, 9))), atol=1e-15)
    assert square_root(3).coefficients == square_root(9).coefficients[:3] == (1.0, 0.5, 0.375)


@pytest.mark.parametrize(
    "coefficients", [(), (0.5,), (2.0, 1.0), (1.0, 0.2, 0.3), (1.0, -0.1), (1.0, math.nan), (1.0, math.inf)]
)
def test_bands_that_do_not_fall_from_one_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="coefficients"):
        Banded(coefficients=coefficients)


def test_other_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="rounds"):
        Participation(rounds=0, min_separation=1)
    with pytest.raises(ConfigError, match="min_separation"):
        Participation(rounds=1, min_separation=0)
    with pytest.raises(ConfigError, match="bands"):
        square_root(0)
    with pytest.raises(ConfigError, match="contributions_bound"):
        replace(correlated(Banded(coefficients=(1.0,))), contributions_bound=0)
    with pytest.raises(ConfigError, match="size"):
        correlated(Banded(coefficients=(1.0,))).init(0)
