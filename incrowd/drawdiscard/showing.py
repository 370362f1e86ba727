"""Public figures of a pool: they depend on contributions only through released weights and their number."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from incrowd._random import Floats
from incrowd.drawdiscard.adversaries import Situation, adversaries
from incrowd.drawdiscard.pool import Instance, stable_variance
from incrowd.drawdiscard.server import promise
from incrowd.drawdiscard.specification import Specification

SHOWN = 200  # the page shows this many of the largest weights
LATER = 1_000  # the opportunist of the three adversaries looks after this many more updates
LARGEST_EPSILON = 700.0  # above this epsilon a float cannot hold the bounds of adversary III


@dataclass(frozen=True, eq=False)
class PoolFigures:
    """The mean and the spread of each weight over the instances; `turned` counts answers by the name of the reason."""

    accepted: int
    mean: Floats
    spread: Floats
    turned: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Instance], *, accepted: int, turned: Mapping[str, int]) -> "PoolFigures":
        """The figures of these instances."""
        held = np.array(rows, np.float64)
        mean = held.mean(axis=0)
        spread = held.std(axis=0, ddof=1) if len(held) > 1 else np.zeros(len(mean))
        return cls(accepted, mean, spread, dict(turned))


def shown(asked: Specification, figures: PoolFigures, *, views: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """All figures and the guarantee, as plain data; `views` are those of `three_adversaries`, if known."""
    return {
        "name": asked.name,
        "fingerprint": asked.fingerprint,
        "accepted": figures.accepted,
        "turned_away": {name: count for name, count in figures.turned.items() if name != "repeated"},
        "repeated": figures.turned.get("repeated", 0),
        "instances": asked.instances,
        "size": asked.size,
        "epsilon": asked.epsilon,
        "delta": asked.mechanism.delta or 0.0,
        "privacy": asked.privacy,
        "spread": _spread(asked, figures),
        "weights": _named_weights(asked, figures.mean),
        "promise": asked.describe(),
        "statement": promise(asked, figures.accepted),
        "adversaries": three_adversaries(asked) if views is None else views,
    }


def _spread(asked: Specification, figures: PoolFigures) -> dict[str, float]:
    """The root mean square spread over the weights, measured and as noise alone makes it in the long run."""
    variance = asked.gamma_of(asked.epoch(figures.accepted)) ** 2 * asked.mechanism.noise_variance
    theory = math.sqrt(stable_variance(asked.instances, variance, merge=asked.merge))
    return {"measured": float(np.sqrt(np.square(figures.spread).mean())), "theory": theory}


def _named_weights(asked: Specification, weights: Floats) -> list[dict[str, Any]]:
    """The largest weights with the names of their features and outputs."""
    outputs = asked.outputs
    names = [*(["intercept"] if asked.intercept else []), *asked.columns]
    largest = np.argsort(-np.abs(weights), kind="stable")[:SHOWN]
    levels = getattr(asked.fields[asked.response], "levels", None) or [asked.response]
    return [
        {"feature": names[place // outputs], "output": levels[place % outputs], "weight": float(weights[place])}
        for place in largest.tolist()
    ]


def three_adversaries(asked: Specification) -> list[dict[str, Any]]:
    """The knowledge of the paper's three adversaries of one contribution; none for Gaussian noise.

    The second and third have smaller bounds only for Laplace noise of one size in answers that overwrite an instance.
    After merged answers or smaller steps, later noise hides less, and all three see the guarantee alone.
    """
    if asked.noise in ("gaussian", "none"):
        return []
    overwrites = asked.noise == "laplace" and asked.merge == 1 and asked.falls_every is None
    if not overwrites or asked.epsilon > LARGEST_EPSILON:
        return _guaranteed(asked.epsilon)
    situation = Situation(
        instances=asked.instances,
        epsilon=asked.epsilon,
        updates_since=LATER,
        learning_rate=asked.gamma,
        clip=asked.clip,
        weights=asked.size,
        unit="feature" if asked.privacy == "feature" else "model" if asked.bound == "element" else "l1",
    )
    return adversaries(situation)


def _guaranteed(epsilon: float) -> list[dict[str, Any]]:
    seen = {
        "I, channel listener": "the instance sent to the device and the one that came back",
        "II, internal threat": "all instances, right after the update",
        "III, opportunistic threat": "one random instance, or the average, any time later",
    }
    only = "a guarantee, for one update; no smaller bound is known where answers are merged, averaged or fall"
    views: list[dict[str, Any]] = [
        {"adversary": adversary, "sees": sees, "epsilon": epsilon, "delta": 0.0, "meaning": only, "assumes": "nothing"}
        for adversary, sees in seen.items()
    ]
    views[0]["meaning"] = "a guarantee, for one update"
    return views
