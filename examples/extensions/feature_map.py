"""A feature map of your own: each number as a thermometer of some levels, so that a linear model can bend.

Run: python examples/extensions/feature_map.py
"""

import sys
from collections.abc import Sequence

import numpy as np

import incrowd
from incrowd.testing import check_feature_map
from incrowd.types import register


class Thermometer:
    """For each number and level, the part of the number above the level, up to 1."""

    def __init__(self, levels: Sequence[float]) -> None:
        self.levels = tuple(levels)

    @property
    def name(self) -> str:
        """The levels, on which features depend."""
        return f"thermometer {self.levels}"

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Features [examples, numbers * levels]."""
        rows = values.reshape(len(values), -1, 1)
        above: np.ndarray = np.clip(rows - np.array(self.levels, np.float32), 0, 1)
        return above.reshape(len(values), -1)


check_feature_map(Thermometer([0, 1]), np.random.default_rng(0).normal(size=(9, 3)))
register("feature_maps", "thermometer", Thermometer)

federation = incrowd.Federation.from_tables(
    {
        "data": {"name": "digits"},
        "features": {"name": "map", "map": "thermometer", "arguments": {"levels": [0.0, 0.25, 0.5, 0.75]}},
        "local": {"learning_rate": 0.3, "batch_size": 10},
        "privacy": {"epsilon": 8.0, "delta": 1e-4, "rounds": 5},
    }
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/thermometer", progress=False)
print(result.statement)
print(f"accuracy {result.accuracy:.2f}")
