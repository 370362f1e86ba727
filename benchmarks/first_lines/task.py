"""The same task for everyone: a module of one's own, three hundred people, epsilon 4 for all that each of them has."""

import numpy as np
from torch import nn

EPSILON, DELTA, ROUNDS, COHORT, RATE, CLASSES = 4.0, 1e-4, 10, 100, 0.3, 2

_generator = np.random.default_rng(0)
OWNER = _generator.integers(0, 300, 2700)
_all = _generator.normal(size=(3000, 6)).astype(np.float32)
_right = (_all[:, 0] + _all[:, 1] > 0).astype(np.int64)
X, Y, TEST = _all[:2700], _right[:2700], (_all[2700:], _right[2700:])


def network() -> nn.Module:
    """What is to be trained."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
