"""What a service shows of itself: figures for a page and a monitor, computed beside the event loop and not often."""

import asyncio
import math
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from incrowd._random import Floats
from incrowd.drawdiscard.pool import stable_variance
from incrowd.drawdiscard.predictor import Predictor
from incrowd.drawdiscard.server import promise
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import AccountingError, ConfigError
from incrowd.privacy.account.adversaries import Situation, adversaries
from incrowd.service.public_table import PublicTable
from incrowd.service.store import PoolFigures, StoreAway
from incrowd.service.tending import Tending

FRESH = 1.0
"""Figures are looked at again after so many seconds, whoever asks."""

SHOWN = 200
"""So many weights are shown, the largest of them."""

LATER = 1_000
"""The opportunist of the three adversaries looks after so many more updates."""

_WINDOW = 10


@dataclass(frozen=True)
class Spread:
    """How far instances are apart: the root of the mean square over the weights, and what theory says of it."""

    measured: float
    theory: float


class Board:
    """The figures of a pool, at most `FRESH` seconds old.

    Guarantee: however many ask, the pool is looked at once in that time, and computing goes on in a thread of its own.
    What is shown depends on contributions only through released weights and on how many came.

    Edge cases: while the store is away the last figures are shown, and that it is.
    """

    def __init__(self, tending: Tending, *, public: PublicTable | None = None) -> None:
        self._tending, self._public = tending, public
        self._asked: Specification = tending.store.desk.specification
        self._turn = asyncio.Lock()
        self._figures: PoolFigures | None = None
        self._status: dict[str, Any] = {}
        self._looked = -math.inf
        self._ticks: deque[tuple[float, int]] = deque(maxlen=_WINDOW + 1)
        self._views: list[dict[str, Any]] | None = None

    async def figures(self) -> PoolFigures:
        """The pool's figures."""
        await self._look()
        if self._figures is None:
            raise ConfigError(field="pool", value=None, remedy="open the store before it is looked at")
        return self._figures

    async def status(self) -> dict[str, Any]:
        """What the page shows."""
        await self._look()
        store = self._tending.store
        return {**self._status, "updates_per_second": self.rate, "paused": store.paused, "trouble": store.trouble}

    def tick(self) -> None:
        """Note how many were accepted by now; once a second."""
        self._ticks.append((time.monotonic(), self._tending.accepted))

    @property
    def rate(self) -> float:
        """Accepted answers a second, over the last seconds."""
        if len(self._ticks) < 2:
            return 0.0
        (since, before), (now, accepted) = self._ticks[0], self._ticks[-1]
        return max(0.0, (accepted - before) / (now - since)) if now > since else 0.0

    async def _look(self) -> None:
        async with self._turn:
            if time.monotonic() - self._looked < FRESH:
                return
            try:
                figures = await self._tending.store.figures()
            except StoreAway:
                if self._figures is None:
                    raise
                return  # the last figures are better than none; that the store is away is said beside them
            self._status = await asyncio.to_thread(self._shown, figures)
            self._figures, self._looked = figures, time.monotonic()
            self._tending.accepted = max(self._tending.accepted, figures.accepted)

    def _shown(self, figures: PoolFigures) -> dict[str, Any]:
        asked = self._asked
        predictor = Predictor(asked, figures.average)
        if self._views is None:
            self._views = three_adversaries(asked)
        return {
            "name": asked.name,
            "fingerprint": asked.fingerprint,
            "accepted": figures.accepted,
            "turned_away": {name: count for name, count in figures.turned.items() if name != "repeated"},
            "repeated": figures.turned.get("repeated", 0),
            "instances": asked.instances,
            "size": asked.size,
            "epsilon": asked.epsilon,
            "privacy": asked.privacy,
            "spread": asdict(spread(asked, figures)),
            "weights": named_weights(asked, figures.average),
            "public": None if self._public is None else self._public.score(predictor),
            "promise": asked.describe(),
            "statement": promise(asked, figures.accepted),
            "adversaries": self._views,
        }


def spread(asked: Specification, figures: PoolFigures) -> Spread:
    """How far the instances are apart, beside what noise alone makes of them in the long run."""
    measured = float(np.sqrt(np.square(figures.spread).mean()))
    gamma = asked.gamma_of(asked.epoch(figures.accepted))
    variance = gamma**2 * asked.mechanism.noise_variance
    return Spread(measured, math.sqrt(stable_variance(asked.instances, variance, merge=asked.merge)))


def named_weights(asked: Specification, weights: Floats) -> list[dict[str, Any]]:
    """The largest weights with the names of their features and outputs; none of a perceptron, whose have no names."""
    if asked.hidden:
        return []
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

    What the second and the third may expect beyond the guarantee is known for answers that overwrite an instance, with
    noise of one size: where answers are merged or steps fall, later noise hides less, and only the guarantee is shown.
    """
    if asked.noise != "laplace":
        return []
    if asked.merge < 1 or asked.falls_every is not None or asked.tail is not None:
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
