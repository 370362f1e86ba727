import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import toeplitz
from scipy.optimize import minimize

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism import factorisation
from incrowd.privacy.mechanism.factorisation import (
    Banded,
    Blt,
    Participation,
    StrategyMatrix,
    improvement,
    inverse,
    mean_squared_error,
    optimal_banded,
    optimal_blt,
    sensitivity,
    square_root,
)

STRATEGIES: list[StrategyMatrix] = [
    Banded(coefficients=(1.0,)),
    Banded(coefficients=(1.0, 0.7, 0.3, 0.1)),
    Banded(coefficients=(1.0, 1.0)),
    Blt(weights=(0.3, 0.2), decays=(0.9, 0.25)),
    Blt(weights=(1.0,), decays=(0.0,)),
    Blt(weights=(), decays=()),
]
EACH = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
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


@pytest.mark.parametrize(("rounds", "apart", "most"), [(8, 3, 3), (9, 3, 3), (1, 1, 1), (5, 9, 1), (4, 1, 4)])
def test_the_most_participations_is_the_longest_pattern(rounds: int, apart: int, most: int) -> None:
    participation = Participation(rounds=rounds, min_separation=apart)
    assert participation.most == max(len(pattern) for pattern in patterns(participation)) == most


@given(falling_columns, st.integers(1, 9))
def test_sensitivity_is_the_worst_of_all_patterns(column: Floats, apart: int) -> None:
    participation = Participation(rounds=8, min_separation=apart)
    worst = max(np.linalg.norm(dense(column)[:, pattern].sum(axis=1)) for pattern in patterns(participation))
    assert sensitivity(column, participation) == pytest.approx(worst, rel=1e-12)


@given(falling_columns, st.integers(1, 9), st.integers(0, 2**32))
def test_no_directions_of_contributions_are_worse_than_all_the_same(column: Floats, apart: int, seed: int) -> None:
    participation = Participation(rounds=8, min_separation=apart)
    rounds = np.arange(0, 8, apart)
    moves = np.zeros((8, 3))
    moves[rounds] = np.random.Generator(np.random.PCG64(seed)).normal(size=(len(rounds), 3))
    moves[rounds] /= np.linalg.norm(moves[rounds], axis=1, keepdims=True)
    assert np.linalg.norm(dense(column) @ moves) <= sensitivity(column, participation) * (1 + 1e-12)


def test_columns_that_do_not_meet_add_their_squares() -> None:
    column = Banded(coefficients=(1.0, 0.5, 0.25)).column(8)
    whole, last = 1 + 0.25 + 0.0625, 1 + 0.25
    expected = math.sqrt(2 * whole + last)
    assert sensitivity(column, Participation(rounds=8, min_separation=3)) == pytest.approx(expected)


def test_a_column_that_rises_has_another_worst_pattern_which_is_why_it_is_refused() -> None:
    column, participation = np.array([1.0, 0.0, 0.0, 0.9]), Participation(rounds=4, min_separation=2)
    worst = max(np.linalg.norm(dense(column)[:, pattern].sum(axis=1)) for pattern in patterns(participation))
    assert worst > sensitivity(column, participation)


@EACH
def test_strategies_have_falling_columns_and_true_inverses(strategy: StrategyMatrix) -> None:
    column = strategy.column(9)
    assert column[0] == 1
    assert np.all(np.diff(column) <= 0)
    assert column.min() >= 0
    assert np.allclose(dense(inverse(column)), np.linalg.inv(dense(column)))
    assert np.array_equal(strategy.column(2), column[:2])
    assert strategy.column(1).tolist() == [1]


@EACH
def test_dividing_round_by_round_is_multiplying_by_the_inverse(strategy: StrategyMatrix) -> None:
    fresh = np.random.Generator(np.random.PCG64(1)).normal(size=(9, 4))
    memory, streamed = strategy.start(4), []
    for row in fresh:
        noise = row - strategy.echo(memory, 4)
        memory = strategy.remember(memory, noise)
        streamed.append(noise)
    assert np.allclose(streamed, np.linalg.inv(dense(strategy.column(9))) @ fresh)


@EACH
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_an_echo_errs_by_no_more_than_its_bound(strategy: StrategyMatrix, seed: int, rounds: int) -> None:
    noises = np.random.Generator(np.random.PCG64(seed)).integers(-(2**50), 2**50, rounds).astype(np.float64)
    memory = strategy.start(1)
    for noise in noises:
        memory = strategy.remember(memory, np.array([noise]))
    exact = sum(
        (
            coefficient * Fraction(noise)
            for coefficient, noise in zip(exact_tail(strategy, rounds), noises[::-1], strict=True)
        ),
        Fraction(0),
    )
    error = abs(Fraction(strategy.echo(memory, 1)[0]) - exact)
    assert error <= Fraction(strategy.rounding(rounds)) * Fraction(np.abs(noises).max())


def exact_tail(strategy: StrategyMatrix, rounds: int) -> list[Fraction]:
    """c_1, c_2, ... without any rounding."""
    if isinstance(strategy, Banded):
        return [Fraction(c) for c in (*strategy.coefficients[1:], *[0.0] * rounds)][:rounds]
    assert isinstance(strategy, Blt)
    pairs = [
        (Fraction(weight), Fraction(decay)) for weight, decay in zip(strategy.weights, strategy.decays, strict=True)
    ]
    return [sum((weight * decay**t for weight, decay in pairs), Fraction(0)) for t in range(rounds)]


@EACH
@pytest.mark.parametrize("apart", [1, 4, 9])
def test_the_error_is_that_of_the_dense_product(strategy: StrategyMatrix, apart: int) -> None:
    participation = Participation(rounds=9, min_separation=apart)
    summing = dense(np.ones(9))
    column = strategy.column(9)
    rows = summing @ np.linalg.inv(dense(column))
    expected = np.sum(rows**2) / 9 * sensitivity(column, participation) ** 2
    assert mean_squared_error(column, participation) == pytest.approx(expected)
    alone = np.sum(summing**2) / 9 * participation.most
    assert improvement(column, participation) == pytest.approx(math.sqrt(alone / expected))


def test_the_square_root_squares_to_sums() -> None:
    assert np.allclose(dense(square_root(20)) @ dense(square_root(20)), dense(np.ones(20)))


@pytest.mark.parametrize(("rounds", "apart"), [(1, 1), (2, 1), (16, 16), (40, 10), (40, 3)])
def test_optimal_strategies_are_never_worse_than_their_start(rounds: int, apart: int) -> None:
    participation = Participation(rounds=rounds, min_separation=apart)
    for bands in (1, 2, 5, rounds):
        cut = square_root(rounds) * (np.arange(rounds) < bands)
        best = optimal_banded(participation, bands=bands).column(rounds)
        assert np.count_nonzero(best) <= bands
        error = mean_squared_error(best, participation)
        assert error <= mean_squared_error(cut, participation) * (1 + 1e-12)
    errors = [
        mean_squared_error(optimal_blt(participation, buffers=buffers).column(rounds), participation)
        for buffers in (1, 3)
    ]
    assert errors[1] <= errors[0] * 1.01


def test_optimal_bands_are_what_a_plain_search_finds() -> None:
    participation = Participation(rounds=6, min_separation=6)

    def error(rest: Floats) -> float:
        return mean_squared_error(np.array([1, *rest, 0]), participation)

    plain = minimize(
        error, square_root(5)[1:], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000}
    )
    best = optimal_banded(participation, bands=5)
    assert np.allclose(best.coefficients[1:], plain.x, atol=1e-4)


def test_the_slope_is_that_of_the_error() -> None:
    participation, column, width = Participation(rounds=12, min_separation=5), square_root(12), 1e-6
    slope = factorisation._log_error(column, participation)[1]
    for t in range(1, 12):
        nudge = width * (np.arange(12) == t)
        ends = [factorisation._log_error(column + side * nudge, participation)[0] for side in (-1, 1)]
        assert slope[t] == pytest.approx((ends[1] - ends[0]) / (2 * width), rel=1e-6)


def test_repeating_the_search_gives_the_same_strategy() -> None:
    participation = Participation(rounds=50, min_separation=10)
    assert optimal_banded(participation, bands=10) == optimal_banded(participation, bands=10)
    assert optimal_blt(participation, buffers=3) == optimal_blt(participation, buffers=3)


@pytest.mark.parametrize(
    ("rounds", "apart", "banded", "blt"), [(100, 100, 3.06, 3.06), (1000, 100, 6.11, 5.80), (2000, 200, 8.15, 7.75)]
)
def test_figures_that_the_documentation_states(rounds: int, apart: int, banded: float, blt: float) -> None:
    participation = Participation(rounds=rounds, min_separation=apart)
    assert improvement(optimal_banded(participation, bands=apart).column(rounds), participation) > banded
    assert improvement(optimal_blt(participation, buffers=4).column(rounds), participation) > blt


@pytest.mark.parametrize(
    "coefficients", [(), (0.5,), (2.0, 1.0), (1.0, 0.2, 0.3), (1.0, -0.1), (1.0, math.nan), (1.0, math.inf)]
)
def test_bands_that_do_not_fall_from_one_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="coefficients"):
        Banded(coefficients=coefficients)


@pytest.mark.parametrize(
    ("weights", "decays", "field"),
    [
        ((0.7, 0.4), (0.5, 0.5), "weights"),
        ((-0.1,), (0.5,), "weights"),
        ((0.5,), (1.0,), "decays"),
        ((0.5,), (-0.5,), "decays"),
        ((0.5,), (math.nan,), "decays"),
        ((0.5,), (), "decays"),
    ],
)
def test_buffers_that_do_not_fall_are_refused(
    weights: tuple[float, ...], decays: tuple[float, ...], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        Blt(weights=weights, decays=decays)


def test_other_bad_numbers_are_refused() -> None:
    participation = Participation(rounds=4, min_separation=2)
    with pytest.raises(ConfigError, match="rounds"):
        Participation(rounds=0, min_separation=1)
    with pytest.raises(ConfigError, match="min_separation"):
        Participation(rounds=1, min_separation=0)
    with pytest.raises(ConfigError, match="bands"):
        optimal_banded(participation, bands=0)
    with pytest.raises(ConfigError, match="buffers"):
        optimal_blt(participation, buffers=0)
