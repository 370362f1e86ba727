"""Figure 1 of Pihur et al. (2018), a sketch there and a measurement here: how far instances drift apart under noise.

On the left draw and discard, on the right the same noise where each update replaces the instance that it drew. Nothing
is learned: a weight starts at 0, and every update adds noise of variance 1.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import checks
from harness.arrays import Floats
from harness.pictures import BLUE, RED, SIMULATED, axes, dress, files
from harness.results import Finding
from incrowd import ConfigError, SeededRandomness
from incrowd.drawdiscard import Coins, Pool, draw_and_discard, same_instance, stable_variance

WEIGHTS = 50
"""So many weights share the coins of a pool."""

NAME = "ddml-figure1"

SHOWN = 125
"""So many moments are drawn: with more, a picture becomes larger, not clearer."""

Kind = Callable[..., Coins]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How many instances there are, how many updates, and over how many independent pools everything is averaged.

    Edge cases: one instance has no spread, and one pool no standard error: at least two of each.
    """

    instances: int = 10
    updates: int = 2_000
    seeds: int = 30

    def __post_init__(self) -> None:
        checks.count(instances=self.instances, updates=self.updates, seeds=self.seeds)
        for field, value in (("instances", self.instances), ("seeds", self.seeds)):
            if value < 2:
                raise ConfigError(
                    field=field, value=value, remedy="give at least 2, so that there is something to compare"
                )

    @property
    def stable(self) -> float:
        """The variance that theorem 1 says will stay."""
        return stable_variance(self.instances, 1.0)

    def measure(self) -> dict[str, Any]:
        """Both panels: the variance over the instances after each update, and the paths of one weight."""
        panels: dict[str, Kind] = {"draw and discard": draw_and_discard, "same instance": same_instance}
        found = {name: [self._run(kind, seed) for seed in range(self.seeds)] for name, kind in panels.items()}
        variances = {name: np.array([variance for variance, _ in runs]) for name, runs in found.items()}
        return {
            "figure": NAME,
            "instances": self.instances,
            "updates": list(range(self.updates + 1)),
            "stable_variance": self.stable,
            "pools": self.seeds,
            "panels": [
                {"title": name, "variance": variances[name].mean(axis=0).tolist(), "paths": runs[0][1].T.tolist()}
                for name, runs in found.items()
            ],
            "findings": [one.to_json() for one in self._findings(variances)],
        }

    def _run(self, kind: Kind, seed: int) -> tuple[Floats, Floats]:
        """The variance averaged over the weights, and the first weight of every instance; after each update."""
        randomness = SeededRandomness(seed)
        noise = randomness.stream("noise")
        start = np.zeros(WEIGHTS)
        pool = Pool.initial(start, instances=self.instances, update_variance=1.0, randomness=randomness)
        coins = kind(instances=self.instances, updates=self.updates, randomness=randomness)
        held, variances, paths = pool.instances.astype(np.float64), [], []
        for update in range(self.updates + 1):
            if update:
                drawn = held[coins.drawn[update - 1]]
                held[coins.replaced[update - 1]] = drawn + math.sqrt(0.5) * noise.laplaces(WEIGHTS)
            variances.append(held.var(axis=0, ddof=1).mean())
            paths.append(held[:, 0].copy())
        return np.array(variances), np.array(paths)

    def _findings(self, variances: dict[str, Floats]) -> list[Finding]:
        """Each pool's average over the second half counts once: its updates share their coins."""
        late = {name: each[:, self.updates // 2 :].mean(axis=1) for name, each in variances.items()}
        middle = self.stable + 0.75 * self.updates / self.instances
        return [
            _near(
                "draw and discard keeps the variance at k/2 that of the noise", late["draw and discard"], self.stable
            ),
            _near("without discarding it grows by 1/k of the noise's with each update", late["same instance"], middle),
        ]


def plot_spread(folder: Path, report: dict[str, Any]) -> list[str]:
    """Paths above, variances below; gives the names of the files."""
    paths, every = files(folder, NAME), max(1, len(report["updates"]) // SHOWN)
    updates = report["updates"][::every]
    titles = (f"draw and discard, k = {report['instances']}", "each update replaces what it drew")
    with axes(*paths, columns=2, rows=2, height=3.0) as panels:
        for column, (panel, title) in enumerate(zip(report["panels"], titles, strict=True)):
            above, below = panels[column], panels[column + 2]
            instances = np.asarray(panel["paths"])[:, ::every]
            for number, line in enumerate(instances):
                label = "" if number else "an instance"
                above.plot(updates, line, color=BLUE, linestyle="-", linewidth=0.6, alpha=0.7, label=label)
            above.plot(updates, instances.mean(axis=0), color=RED, linestyle="-", linewidth=2, label="their average")
            below.plot(updates, panel["variance"][::every], label="measured")
            below.axhline(report["stable_variance"], linestyle="--", color="black", label="theorem 1: k/2")
            dress(above, y="a weight (noise: 1)", title=title, loc="upper left")
            dress(below, "updates", "variance over the instances", title=SIMULATED, loc="upper left")
        for left, right in (panels[:2], panels[2:]):
            left.sharey(right)
            left.autoscale()
    return [str(path) for path in paths]


def _near(statement: str, sample: Floats, expected: float) -> Finding:
    """Within four standard errors."""
    mean, error = statistics.fmean(sample), statistics.stdev(sample) / math.sqrt(len(sample))
    measured = f"{mean:.4g} ± {error:.2g}, expected {expected:.4g}"
    return Finding(statement=statement, measured=measured, agrees=abs(mean - expected) <= 4 * error)
