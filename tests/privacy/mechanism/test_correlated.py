import io
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from scipy.linalg import toeplitz

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.correlated import CorrelatedNoise, NoiseState
from incrowd.privacy.mechanism.factorisation import Banded, Blt, Participation, StrategyMatrix, inverse, sensitivity
from incrowd.privacy.mechanism.noise import padded
from tests.privacy.receipts import paid
from tests.statistics import ks, rejects_wrong_scale

ROUNDS = 6
SOURCES = pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(6)], ids=["system", "seeded"])
STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [
        Banded(coefficients=(1.0,)),
        Banded(coefficients=(1.0, 0.6, 0.3)),
        Banded(coefficients=(1.0, 0.5, 0.4, 0.3, 0.2)),
        Blt(weights=(0.3, 0.2), decays=(0.9, 0.4)),
    ],
    ids=["one band", "three bands", "five bands", "blt"],
)


def correlated(strategy: StrategyMatrix, *, multiplier: float = 2.0, clip_norm: float = 0.5) -> CorrelatedNoise:
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
def test_the_streamed_noise_is_the_dense_product(strategy: StrategyMatrix) -> None:
    noise, source = correlated(strategy), SeededRandomness(1)
    step, scale = noise.scale(40)
    streams = [source.stream("noise", round) for round in range(ROUNDS)]
    fresh = np.array([grid.sample_noise(grid.NORMAL, scale=scale / step, size=40, stream=stream) for stream in streams])
    expected = divide(noise) @ fresh
    streamed = run(noise, np.zeros((ROUNDS, 40)), source) / step
    assert np.array_equal(streamed, np.rint(streamed))
    assert np.abs(streamed - expected).max() <= 0.5 * np.abs(divide(noise)[:, 0]).sum() + 1e-3
    assert np.abs(streamed).max() > 1e6


@SOURCES
@STRATEGIES
def test_the_covariance_over_rounds_is_that_of_the_inverse(strategy: StrategyMatrix, source: Randomness) -> None:
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


def test_running_sums_are_better_than_with_independent_noise_by_the_stated_factor() -> None:
    better, alone = (
        correlated(strategy) for strategy in (Banded(coefficients=(1.0, 0.5, 0.375)), Banded(coefficients=(1.0,)))
    )
    assert better.event() == alone.event()
    size = 100_000
    errors = [
        math.sqrt(np.mean(np.cumsum(run(noise, np.zeros((ROUNDS, size)), SeededRandomness(2)), axis=0) ** 2))
        for noise in (better, alone)
    ]
    assert alone.improvement == 1
    assert better.improvement > 1.23
    assert errors[1] / errors[0] == pytest.approx(better.improvement, rel=0.01)


@STRATEGIES
def test_sums_pass_through_to_within_half_a_step(strategy: StrategyMatrix) -> None:
    noise = correlated(strategy)
    totals = np.random.Generator(np.random.PCG64(3)).uniform(-0.1, 0.1, size=(ROUNDS, 30))
    apart = run(noise, totals, SeededRandomness(1)) - run(noise, np.zeros((ROUNDS, 30)), SeededRandomness(1))
    assert np.abs(apart - totals).max() <= noise.scale(30)[0] / 2


@STRATEGIES
@pytest.mark.parametrize("seed", range(5))
def test_what_is_learnt_about_one_client_is_within_the_sensitivity_that_the_noise_hides(
    strategy: StrategyMatrix, seed: int
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
    memory, fresh = noise.strategy.start(totals.shape[1]), []
    for row in np.rint(released / step) - np.rint(totals / step):
        fresh.append(row + np.rint(noise.strategy.echo(memory, row.size)))
        memory = noise.strategy.remember(memory, row)
    return np.array(fresh)


@STRATEGIES
@pytest.mark.parametrize("size", [1, 1000, 532_000])
def test_the_price_of_floating_point_is_paid_and_small(strategy: StrategyMatrix, size: int) -> None:
    noise = correlated(strategy)
    needed = noise.sensitivity * padded(noise.clip_norm, contributions_bound=50)
    step, scale = noise.scale(size)
    assert needed + step * math.sqrt(ROUNDS * size) <= scale / noise.noise_multiplier <= needed * (1 + 1e-5)
    assert noise.sensitivity == sensitivity(strategy.column(ROUNDS), noise.participation)


@STRATEGIES
@pytest.mark.parametrize("stop", range(ROUNDS))
def test_a_resumed_run_equals_the_uninterrupted_one(strategy: StrategyMatrix, stop: int) -> None:
    noise, source = correlated(strategy), SeededRandomness(9)
    totals = np.random.Generator(np.random.PCG64(4)).uniform(-0.1, 0.1, size=(ROUNDS, 20))
    whole = run(noise, totals, source)
    state = noise.init(20)
    for round in range(ROUNDS):
        if round == stop:
            state = written_and_read(state)
        noised, state = noise.add(
            totals[round], state=state, receipt=paid(noise, randomness=source), at=("noise", round)
        )
        assert np.array_equal(noised.values, whole[round])


def written_and_read(state: NoiseState) -> NoiseState:
    file = io.BytesIO()
    np.savez(file, np.array([state.round, state.size]), *state.memory)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        head, *memory = (arrays[name] for name in arrays.files)
    return NoiseState(round=int(head[0]), size=int(head[1]), memory=tuple(memory))


@STRATEGIES
def test_using_a_state_leaves_it_and_the_sum_as_they_are(strategy: StrategyMatrix) -> None:
    noise, total = correlated(strategy), np.full(5, 0.1)
    state = noise.init(5)
    for round in range(3):
        before = [row.copy() for row in state.memory]
        noised, later = noise.add(
            total, state=state, receipt=paid(noise, randomness=SeededRandomness(1)), at=("noise", round)
        )
        again, _ = noise.add(
            total, state=state, receipt=paid(noise, randomness=SeededRandomness(1)), at=("noise", round)
        )
        assert np.array_equal(noised.steps, again.steps)
        assert state.round == round
        assert all(np.array_equal(a, b) for a, b in zip(before, state.memory, strict=True))
        state = later
    assert total.tolist() == [0.1] * 5


def test_a_state_does_not_show_its_memory() -> None:
    noise = correlated(Banded(coefficients=(1.0, 0.5)))
    _, state = noise.add(np.zeros(5), state=noise.init(5), receipt=paid(noise), at=("noise", 0))
    assert repr(state) == "NoiseState(round=1, size=5)"


def test_the_whole_run_is_one_event() -> None:
    assert correlated(Banded(coefficients=(1.0, 0.5))).event() == GaussianDpEvent(2.0)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_calibration_spends_the_budget_on_the_whole_run(epsilon: float) -> None:
    budget = Budget(epsilon=epsilon, delta=1e-5)
    noise = correlated(Banded(coefficients=(1.0, 0.5)), multiplier=77.0).calibrate(budget)
    spent = [
        price(event, delta=budget.delta, relation=noise.relation).epsilon
        for event in (noise.event(), GaussianDpEvent(noise.noise_multiplier * 0.999))
    ]
    assert spent[0] <= epsilon < spent[1]
    assert noise == correlated(Banded(coefficients=(1.0, 0.5)), multiplier=noise.noise_multiplier)


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


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_no_noise_and_no_bound_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="noise_multiplier"):
        correlated(Banded(coefficients=(1.0,)), multiplier=bad)
    with pytest.raises(ConfigError, match="clip_norm"):
        correlated(Banded(coefficients=(1.0,)), clip_norm=bad)


def test_bad_counts_are_refused() -> None:
    participation, strategy = Participation(rounds=2, min_separation=1), Banded(coefficients=(1.0,))
    with pytest.raises(ConfigError, match="contributions_bound"):
        CorrelatedNoise(
            noise_multiplier=1.0, clip_norm=1.0, contributions_bound=0, participation=participation, strategy=strategy
        )
    with pytest.raises(ConfigError, match="size"):
        correlated(strategy).init(0)


def test_noise_whose_rounding_errors_would_show_is_refused() -> None:
    noise = CorrelatedNoise(
        noise_multiplier=1e5,
        clip_norm=1.0,
        contributions_bound=10,
        participation=Participation(rounds=1000, min_separation=1000),
        strategy=Blt(weights=(1.0,), decays=(1 - 1e-9,)),
    )
    with pytest.raises(ConfigError, match="rounding errors of so much noise would show"):
        noise.scale(1)


def test_noise_too_large_for_the_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit one 64-bit grid"):
        correlated(Banded(coefficients=(1.0, 0.5)), multiplier=1e10).scale(1)
