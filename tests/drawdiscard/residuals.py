"""Honest residuals for tests, in units of the noise's scale, and what an honest device would send."""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.privacy.mechanism.device import Mechanism

WeightRow = NDArray[np.float32]


def noise(mechanism: Mechanism, stream: Stream, *, rows: int) -> Floats:
    """The noise of so many answers, in units of its scale."""
    draw = stream.normals if mechanism.noise == "gaussian" else stream.laplaces
    return draw(rows * mechanism.size).reshape(rows, mechanism.size)


def statistics(residuals: Floats) -> Floats:
    """Mean |r|, mean r^2 and max |r| of each row."""
    sizes = np.abs(residuals)
    return np.stack([sizes.mean(axis=1), np.square(sizes).mean(axis=1), sizes.max(axis=1)], axis=1)


def answers(
    mechanism: Mechanism,
    *,
    count: int,
    gamma: float,
    gradient: Floats | float = 0.0,
    seed: int = 0,
    weights: float = 1.0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Parents and honest answers to them, in float32, as devices make them with this bounded gradient."""
    stream = SeededRandomness(seed).stream("answers")
    parents = (weights * stream.normals(count * mechanism.size)).astype(np.float32).reshape(count, mechanism.size)
    released = gradient + mechanism.noise_scale * noise(mechanism, stream, rows=count)
    return parents, (parents - gamma * released).astype(np.float32)
