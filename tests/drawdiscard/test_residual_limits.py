import math

import numpy as np
import pytest

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.spam_limits import ResidualLimits, fixed_limits, noise_limits
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
def test_noise_alone_is_turned_away_about_as_often_as_wanted(mechanism: Mechanism) -> None:
    share, rows, still = 0.02, 40_000, np.zeros((1, mechanism.size))
    found, half, triple = (
        share_outside(mechanism, fixed_limits(mechanism, share=times * share), still, rows=rows)
        for times in (1.0, 0.5, 3.0)
    )
    error = math.sqrt(share / rows)
    assert 0.4 * share - 4 * error < found < share + 4 * error
    assert half < 0.4 * share + 4 * error < triple  # the control: other shares are told apart


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
