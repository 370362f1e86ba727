"""A server optimizer of your own: the sign of the momentum (Lion), half a step at most in any weight.

Run: python examples/extensions/server_optimizer.py
"""

import sys
from collections.abc import Mapping

import numpy as np
from torch import nn

import incrowd
from incrowd.testing import check_server_optimizer
from incrowd.types import register

Arrays = Mapping[str, np.ndarray]


class Lion:
    """The sign of an average of the means, with the settings' momentum."""

    def __init__(self, settings: incrowd.ServerOptimizer) -> None:
        self.momentum = settings.momentum

    def init(self, size: int) -> Arrays:
        """One array: the average."""
        return {"average": np.zeros(size)}

    def update(self, mean: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        """A step of 1 in every weight."""
        average = self.momentum * state["average"] + (1 - self.momentum) * mean
        return np.sign(average), {"average": average}


check_server_optimizer(Lion)
register("server_optimizers", "lion", Lion)

generator = np.random.default_rng(0)
rows = generator.normal(size=(600, 3)).astype(np.float32)
data = incrowd.Clients.from_arrays(
    rows,
    (rows[:, 0] > 0).astype(np.int64),
    owner=np.arange(600) // 3,
    classes=2,
    test=(rows, rows[:, 0] > 0),
    public=True,
)
federation = incrowd.Federation(
    nn.Linear(3, 2),
    data,
    local=incrowd.Local(learning_rate=0.3, batch_size=3),
    privacy=incrowd.Private(epsilon=4, delta=1e-4, rounds=10, cohort=50, sampling="poisson"),
    server=incrowd.ServerOptimizer(kind="lion", learning_rate=0.1),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/lion", progress=False)
print(result.statement)
print(f"accuracy {result.accuracy:.2f}")
