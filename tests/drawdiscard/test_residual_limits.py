import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.residual_limits import ResidualLimits, fixed_limits, noise_limits
from incrowd.drawdiscard.residual_sums import PossibleStep, SumTails, chance_beyond, largest
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.device import Mechanism
from tests.drawdiscard.residuals import noise, statistics

PER_FEATURE = Mechanism(size=65, clip=0.1, epsilon=math.log(32), privacy="feature")
PER_MODEL = Mechanism(size=387, clip=0.1, epsilon=2.0)
NORM = Mechanism(size=120, clip=1.0, epsilon=16.0, bound="norm")
GAUSSIAN = Mechanism(size=90, clip=0.1, epsilon=8.0, delta=1e-5, noise="gaussian", bound="norm")
GAUSSIAN_ELEMENT = Mechanism(size=70, clip=0.1, epsilon=4.0, delta=1e-5, noise="gaussian", privacy="feature")
MECHANISMS = (PER_FEATURE, PER_MODEL, NORM, GAUSSIAN, GAUSSIAN_ELEMENT)
NAMES = ("feature", "model", "norm", "gaussian", "gaussian feature")


def share_outside(
    mechanism: Mechanism, limits: ResidualLimits, steps: Floats, *, rows: int = 40_000, seed: int = 3
) -> float:
    """How many of so many residuals with these steps (cycling through the rows) break a limit."""
    stream, outside = SeededRandomness(seed).stream("residuals"), 0
    block = 4_000
    for _ in range(rows // block):
        residuals = noise(mechanism, stream, rows=block) + np.resize(steps, (block, mechanism.size))
        mean, square, most = statistics(residuals).T
        kept = (limits.low <= mean) & (mean <= limits.high) & (most <= limits.most)
        kept &= (limits.low_square <= square) & (square <= limits.high_square)
        outside += int((~kept).sum())
    return outside / rows


def steps_of(mechanism: Mechanism, seed: int = 5) -> list[Floats]:
    """Steps that the mechanism allows: corners, edges, the inside, one and many weights; in units of the noise."""
    stream, size = SeededRandomness(seed).stream("steps"), mechanism.size
    length = mechanism.clip / mechanism.noise_scale
    one = np.eye(size)[:1]
    shapes = [one, np.ones((1, size)), np.sign(stream.normals(size))[None], stream.normals(3 * size).reshape(3, size)]
    shapes += [np.repeat([[1.0, 0.0]], [size // 4, size - size // 4], axis=1), 0.5 * one, 0.3 * np.ones((1, size))]
    if mechanism.bound == "element":
        return [length * np.clip(shape, -1, 1) for shape in shapes]
    order = 2 if mechanism.noise == "gaussian" else 1
    return [length * shape / np.linalg.norm(shape, order, axis=1, keepdims=True) for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=NAMES)
def test_noise_alone_is_turned_away_nearly_as_often_as_wanted(mechanism: Mechanism) -> None:
    share, rows = 0.02, 40_000
    found = share_outside(mechanism, fixed_limits(mechanism, share=share), np.zeros((1, mechanism.size)), rows=rows)
    error = math.sqrt(share / rows)
    assert 0.8 * share - 4 * error < found < share + 4 * error
    half, double = (
        share_outside(mechanism, fixed_limits(mechanism, share=other), np.zeros((1, mechanism.size)), rows=rows)
        for other in (share / 2, 2 * share)
    )
    assert half < 0.8 * share - 4 * error  # the control: other shares are told apart
    assert double > share + 4 * error


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=NAMES)
def test_no_step_is_turned_away_more_often_than_wanted(mechanism: Mechanism) -> None:
    share, rows = 0.02, 8_000
    limits = fixed_limits(mechanism, share=share)
    most = share + 4 * math.sqrt(share / rows)
    for step in steps_of(mechanism):
        assert share_outside(mechanism, limits, step, rows=rows) < most


def test_a_step_beyond_the_clip_is_turned_away() -> None:
    limits = fixed_limits(PER_FEATURE, share=0.02)
    corner = PER_FEATURE.clip / PER_FEATURE.noise_scale * np.ones((1, PER_FEATURE.size))
    assert share_outside(PER_FEATURE, limits, corner, rows=4_000) < 0.02
    assert share_outside(PER_FEATURE, limits, 1.5 * corner, rows=4_000) > 0.5
    one = NORM.clip / NORM.noise_scale * np.eye(NORM.size)[:1]
    beyond = share_outside(NORM, fixed_limits(NORM, share=0.02), 2.5 * one, rows=4_000)
    assert beyond > 0.9


def test_noise_alone_limited_by_the_corner_alone_would_be_turned_away_half_as_often() -> None:
    """Why the lower limits get the larger part where steps are long."""
    share = 0.02
    limits = fixed_limits(PER_FEATURE, share=share)
    quarter = noise_limits(PER_FEATURE, share=share / 4)
    evenly = ResidualLimits(quarter.low, limits.high, quarter.low_square, limits.high_square, limits.most)
    assert share_outside(PER_FEATURE, evenly, np.zeros((1, PER_FEATURE.size))) < 0.6 * share


@pytest.mark.parametrize("mechanism", [PER_FEATURE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_each_limit_of_noise_alone_has_its_chance(mechanism: Mechanism) -> None:
    share, rows = 0.05, 40_000
    limits = noise_limits(mechanism, share=share)
    found = statistics(noise(mechanism, SeededRandomness(8).stream("residuals"), rows=rows))
    shares = [
        (found[:, 0] < limits.low).mean(),
        (found[:, 0] > limits.high).mean(),
        (found[:, 1] < limits.low_square).mean(),
        (found[:, 1] > limits.high_square).mean(),
        (found[:, 2] > limits.most).mean(),
    ]
    assert shares == pytest.approx([share] * 5, abs=4 * math.sqrt(share / rows))


@pytest.mark.parametrize("size", [33, 400, 100_000])
def test_sums_of_laplace_noise_have_the_tails_of_a_gamma_distribution(size: int) -> None:
    tails = SumTails(gaussian=False, size=size, step=PossibleStep(0, 0.0), power=1)
    exact = stats.gamma(size)
    for chance in (0.3, 1e-2, 1e-4, 1e-9):
        assert exact.cdf(size * tails.low(chance)) == pytest.approx(chance, rel=0.01)
        assert exact.sf(size * tails.high(chance)) == pytest.approx(chance, rel=0.01)
        assert tails.above(tails.high(chance)) == pytest.approx(chance, rel=1e-3)


@pytest.mark.parametrize(("size", "length"), [(33, 0.0), (400, 0.7), (100_000, 0.05)])
def test_sums_of_squared_normal_noise_have_the_tails_of_a_chi_squared_distribution(size: int, length: float) -> None:
    tails = SumTails(gaussian=True, size=size, step=PossibleStep(size, length), power=2)
    exact = stats.ncx2(size, size * length**2) if length else stats.chi2(size)
    for chance in (0.3, 1e-2, 1e-4, 1e-6):
        assert exact.cdf(size * tails.low(chance)) == pytest.approx(chance, rel=0.01)
        assert exact.sf(size * tails.high(chance)) == pytest.approx(chance, rel=0.01)


def test_one_long_step_among_many_weights_moves_the_sum_by_what_it_is() -> None:
    plain, moved = (SumTails(gaussian=False, size=200, step=PossibleStep(count, 1e3), power=1) for count in (0, 1))
    assert moved.high(0.01) - plain.high(0.01) == pytest.approx((1e3 - 1) / 200, rel=1e-3)


@pytest.mark.parametrize("gaussian", [False, True])
def test_the_largest_of_many_is_beyond_its_quantile_with_its_chance(gaussian: bool) -> None:
    step, rows, chance = PossibleStep(3, 2.0), 40_000, 0.03
    most = largest(chance, gaussian=gaussian, size=50, step=step)
    assert chance_beyond(most, gaussian=gaussian, size=50, step=step) == pytest.approx(chance)
    stream = SeededRandomness(2).stream("largest")
    values = (stream.normals if gaussian else stream.laplaces)(rows * 50).reshape(rows, 50)
    values[:, :3] += 2.0
    found = (np.abs(values).max(axis=1) > most).mean()
    assert found == pytest.approx(chance, abs=4 * math.sqrt(chance / rows))


@pytest.mark.slow
def test_limits_take_two_seconds_at_most_and_are_the_same_always() -> None:
    for size, share in itertools.product((33, 50_000), (0.009, 1e-3)):
        mechanism = Mechanism(size=size, clip=0.1 + 1e-6 * size, epsilon=1.0, privacy="feature")
        begun = time.process_time()
        limits = fixed_limits(mechanism, share=share)
        assert time.process_time() - begun < 4  # two on a quiet machine
        assert fixed_limits(mechanism, share=share) is limits
        scaled = Mechanism(size=size, clip=7 * mechanism.clip, epsilon=1.0, privacy="feature")
        assert fixed_limits(scaled, share=share) == limits  # in units of the noise only their ratio counts


def test_a_small_share_is_never_passed() -> None:
    share, rows = 5e-4, 200_000
    mechanism = Mechanism(size=40, clip=0.1, epsilon=0.1)
    found = share_outside(mechanism, fixed_limits(mechanism, share=share), np.zeros((1, 40)), rows=rows)
    assert 0.5 * share < found < share + 4 * math.sqrt(share / rows)


@pytest.mark.parametrize("size", [1, 2, 10, 32])
def test_few_weights_have_limits_too(size: int) -> None:
    mechanism, share = Mechanism(size=size, clip=0.1, epsilon=1.0, privacy="feature"), 0.02
    found = share_outside(mechanism, fixed_limits(mechanism, share=share), np.zeros((1, size)))
    assert 0.75 * share < found < 1.2 * share


@pytest.mark.parametrize("mechanism", [PER_FEATURE, GAUSSIAN_ELEMENT], ids=["laplace", "gaussian"])
@pytest.mark.parametrize("size", [1, 3, 20])
def test_a_small_share_of_few_weights_is_never_passed(size: int, mechanism: Mechanism) -> None:
    few, share, rows = replace(mechanism, size=size), 9e-4, 200_000
    found = share_outside(few, fixed_limits(few, share=share), np.zeros((1, size)), rows=rows)
    assert 0.25 * share < found < share + 4 * math.sqrt(share / rows)


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: fixed_limits(PER_MODEL, share=0.0), "share"),
        (lambda: fixed_limits(PER_MODEL, share=1.0), "share"),
        (lambda: noise_limits(PER_MODEL, share=float("nan")), "share"),
        (lambda: fixed_limits(Mechanism(size=9, clip=1.0, epsilon=1.0, noise="none"), share=0.1), "noise"),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Callable[[], Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        ask()
