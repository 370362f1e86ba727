"""What may be shown of a pool: figures that depend on contributions through released weights and their number alone."""

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
from incrowd.errors import AccountingError, ConfigError

SHOWN = 200
"""So many weights are shown, the largest of them."""

LATER = 1_000
"""The opportunist of the three adversaries looks after so many more updates."""


@dataclass(frozen=True, eq=False)
class PoolFigures:
    """What a page and a monitor show of a pool.

    `mean` and `spread` are over the instances; `turned` counts what happened to answers, by the name of the reason.
    """

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
    """All of them, and what is promised, as plain data; `views` are the three adversaries' where they are known."""
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
        "spread": spread(asked, figures),
        "weights": named_weights(asked, figures.mean),
        "promise": asked.describe(),
        "statement": promise(asked, figures.accepted),
        "adversaries": three_adversaries(asked) if views is None else views,
    }


def spread(asked: Specification, figures: PoolFigures) -> dict[str, float]:
    """The root of the mean square spread over the weights, beside what noise alone makes of it in the long run."""
    measured = float(np.sqrt(np.square(figures.spread).mean()))
    gamma = asked.gamma_of(asked.epoch(figures.accepted))
    variance = gamma**2 * asked.mechanism.noise_variance
    theory = math.sqrt(stable_variance(asked.instances, variance, merge=asked.merge))
    return {"measured": measured, "theory": theory}


def named_weights(asked: Specification, weights: Floats) -> list[dict[str, Any]]:
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
    """What each of the three adversaries of the paper may learn from one contribution; none for Gaussian noise.

    What the second and the third may expect beyond the guarantee is known for Laplace noise of one size in answers that
    overwrite an instance: where answers are merged or steps fall, later noise hides less, and only the guarantee is
    shown.
    """
    if asked.noise in ("gaussian", "none"):
        return []
    if asked.noise == "direction" or asked.merge < 1 or asked.falls_every is not None:
        return guaranteed(asked.epsilon)
    unit = "feature" if asked.privacy == "feature" else "model" if asked.bound == "element" else "l1"
    try:
        situation = Situation(
            instances=asked.instances,
            epsilon=asked.epsilon,
            updates_since=LATER,
            delta=1e-8,
            learning_rate=asked.gamma,
            clip=asked.clip,
            weights=asked.size,
            unit=unit,
        )
        return [_finite(view) for view in adversaries(situation)]
    except (AccountingError, ConfigError):  # beyond what can be computed: the page does without
        return []


def guaranteed(epsilon: float) -> list[dict[str, Any]]:
    """The three adversaries where nothing but the guarantee is known: what leaves a device is private by itself."""
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


def _finite(view: dict[str, Any]) -> dict[str, Any]:
    """The same for JSON, which knows no infinity."""
    plain = {name: _finite(value) if isinstance(value, dict) else value for name, value in view.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in plain.items()
    }
