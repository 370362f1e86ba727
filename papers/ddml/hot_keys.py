"""Hot keys: stores bear only so many writes a second to one key, and a pool spreads its writes over k of them.

With k = 3 the paper's cache overheated (Pihur et al. 2018, section V-C). Discards choose keys at random, so some
seconds are worse than the average: updates that arrive independently give each key a Poisson number of writes,
independent of the others', and the chance that the busiest one exceeds a limit follows exactly.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import poisson

from harness import checks
from harness.seeds import Entry

LOADS = (20.0, 200.0, 2_000.0, 8_000.0)
INSTANCES = (1, 3, 10, 20, 30, 100)
MOST_KEYS = 100_000
CALM = 0.999
"""The share of the seconds in which no key may exceed the limit."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """A store that bears so many writes a second to one key; the default is the paper's example (section VII)."""

    writes_a_key: int = 10

    def __post_init__(self) -> None:
        checks.count(writes_a_key=self.writes_a_key)

    def calm(self, instances: int, load: float) -> float:
        """The share of the seconds in which no key is written to more often than the store bears."""
        checks.count(instances=instances)
        checks.positive(load=load)
        return float(poisson.cdf(self.writes_a_key, load / instances) ** instances)

    def enough(self, load: float) -> int | None:
        """The fewest instances with which all but one second in a thousand are calm.

        Edge cases: none, where 100,000 are not enough.
        """
        low, high = 0, MOST_KEYS
        if self.calm(high, load) < CALM:
            return None
        while high - low > 1:  # more keys are always calmer
            middle = (low + high) // 2
            low, high = (low, middle) if self.calm(middle, load) >= CALM else (middle, high)
        return high


def busiest(instances: int, load: float) -> int:
    """The writes in a second that the busiest key exceeds in one second of a thousand only."""
    checks.count(instances=instances)
    checks.positive(load=load)
    return int(poisson.ppf(CALM ** (1 / instances), load / instances))


def keys(store: Store, *, instances: Iterable[int] = INSTANCES, loads: Iterable[float] = LOADS) -> list[Entry]:
    """For each load and k: writes a second to a key, on average and to the busiest one, and how often all is calm."""
    return [
        {
            "updates_per_second": load,
            "instances": k,
            "writes_per_key": load / k,
            "busiest_key": busiest(k, load),
            "calm_seconds": store.calm(k, load),
        }
        for load in loads
        for k in instances
    ]


def needed(*, limits: Iterable[int] = (1, 5, 10, 100), loads: Iterable[float] = LOADS) -> list[Entry]:
    """For each load and limit of a store: the instances that the average needs, and those that bad seconds need."""
    return [
        {
            "updates_per_second": load,
            "writes_a_key": limit,
            "instances_on_average": int(np.ceil(load / limit)),
            "instances": Store(writes_a_key=limit).enough(load),
        }
        for load in loads
        for limit in limits
    ]
