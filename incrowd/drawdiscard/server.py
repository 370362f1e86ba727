"""The server of draw and discard, without a network: it hands out instances, tests answers, and keeps the pool on disk.

The public figures of a pool depend on contributions only through released weights and their number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from incrowd._random import Floats
from incrowd.drawdiscard.adversaries import Situation, adversaries
from incrowd.drawdiscard.desk import DeskSettings, Drawn, Outcome, Reason
from incrowd.drawdiscard.fields import CategoryField
from incrowd.drawdiscard.kept_pool import SPECIFICATION, MemoryPool
from incrowd.drawdiscard.pool import HISTORY, Instance, stable_variance
from incrowd.drawdiscard.source import rows_of
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError
from incrowd.privacy.statement import guess, rounded_up

SHOWN = 200  # the page shows this many of the largest weights
LATER = 1_000  # the opportunist of the three adversaries looks after this many more updates
LARGEST_EPSILON = 700.0  # above this epsilon a float cannot hold the bounds of adversary III


@dataclass(frozen=True, eq=False)
class Predictor:
    """A specification and weights for it; it turns rows into features as devices do."""

    specification: Specification
    weights: Floats

    @property
    def levels(self) -> tuple[str, ...]:
        """The classes in the order of the columns of a prediction; none for a numeric response."""
        response = self.specification.predicted
        return response.levels if isinstance(response, CategoryField) else ()

    def predict(self, rows: object) -> Floats:
        """A prediction for each row of a list of dicts, a dict of columns, or a data frame.

        Predictions have the response's units; a boolean has the probability of yes, a category a column for each level.
        """
        source, needed = rows_of(rows), self.specification.names[1:]
        here = [name for name in needed if name in source.columns]
        table = source.read(here) if source.count else {name: [] for name in needed}
        features = self.specification.features(table, count=source.count)
        predicted: Floats = np.asarray(self.specification.model.predict(self.weights, features), np.float64)
        response = self.specification.predicted
        if isinstance(response, CategoryField):
            return predicted
        low, high = response.span
        return low + predicted[:, 0] * (high - low)


class Server:
    """A specification, its pool of instances and a test against spam, in a folder or in memory.

    The test may turn away a share `turned_away` of the honest answers. The pool keeps `history` replaced versions, and
    a device has `lifetime` minutes to answer.

    Guarantee: an `offer` happens as a whole or not at all, whatever a thread offers. An accepted answer is in the pool
    and on disk. A server that was killed continues from there bit for bit. A repeated answer counts once. The files are
    plain numbers, JSON and the key of the tickets, for this user alone; no device's guarantee rests on them.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        folder: str | PathLike[str] | None = None,
        history: int = HISTORY,
        **desk: Unpack[DeskSettings],
    ) -> None:
        self.specification = specification
        self._text = specification.to_json()
        self._lock = RLock()
        self._closed = False
        self._held = MemoryPool(specification, folder=None if folder is None else Path(folder), history=history, **desk)
        self._keep()

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> "Server":
        """The server of a folder, with the default settings."""
        path = Path(folder) / SPECIFICATION
        if not path.is_file():
            remedy = "no server was begun there: give Server a specification"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        return cls(Specification.from_json(path.read_bytes()), folder=folder)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the pool and release the folder; the server takes no more answers."""
        with self._lock:
            if not self._closed:
                self._closed = True
                try:
                    self._keep()
                finally:
                    self._held.close()

    def specification_json(self) -> str:
        """The specification, as `Specification.to_json` writes it."""
        return self._text

    def draw(self) -> Drawn:
        """A uniformly random instance; the server does not note which."""
        with self._lock:
            version, weights = self._held.pool.draw_version()
            return self._held.desk.hand_out(version, weights, accepted=self.accepted)

    def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
        """See `ServerLike.offer`; the server notes nothing of the device."""
        answer = self._held.desk.read(update, ticket)
        if isinstance(answer, Reason):
            return Outcome(answer)
        with self._lock:
            if self._closed:
                raise ConfigError(field="server", value="closed", remedy="open it again before it is offered anything")
            parent = self._held.parent(answer)
            reason = parent if isinstance(parent, Reason) else self._held.desk.judge(answer, parent)
            if reason is None:
                reason = self._held.enter(answer)
            if reason in (Reason.ACCEPTED, Reason.REPEATED):
                self._keep()  # also a repeated one: the disk may have been full the first time
        return Outcome(reason)

    @property
    def accepted(self) -> int:
        """The number of accepted answers so far."""
        return self._held.pool.discards

    def model(self) -> Predictor:
        """The model so far."""
        return Predictor(self.specification, self._held.pool.weights())

    def statement(self) -> str:
        """The guarantee of a contribution and of a device, in plain words."""
        return promise(self.specification, self.accepted)

    def _keep(self) -> None:
        self._held.write(self._held.snapshot(), clean=True)


def promise(asked: Specification, accepted: int) -> str:
    """The guarantee of a contribution and of a device, in plain words."""
    odds = rounded_up(100 * guess(asked.mechanism.epsilon, asked.mechanism.delta or 0.0))
    each = "each released number on its own" if asked.mechanism.privacy == "feature" else "the whole contribution"
    return (
        f"A contribution: {asked.describe()} In other words: someone who sees {each}, and has to say which of two "
        f"tables the device has, even odds to begin with, is right at most {odds} % of the time.\n"
        "A device: what it spends adds up in its own ledger, with limits that its owner set; this server knows "
        "neither who contributes nor how often. Nobody is trusted: the noise is added before anything leaves the "
        f"device.\nThis server: {accepted} contributions are in its pool of {asked.instances} instances."
    )


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
