"""The server of draw and discard: it hands out instances, tests answers, and keeps the pool on disk; no network."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Protocol, Unpack

import numpy as np
from numpy.typing import ArrayLike

from incrowd._random import Floats
from incrowd.drawdiscard.desk import DeskSettings, Drawn, Reason
from incrowd.drawdiscard.fields import CategoryField
from incrowd.drawdiscard.kept_pool import SPECIFICATION, HeldPool
from incrowd.drawdiscard.pool import HISTORY
from incrowd.drawdiscard.source import rows_of
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError
from incrowd.privacy.statement import guess, rounded_up


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


@dataclass(frozen=True)
class Outcome:
    """Whether an answer was accepted, and why (not)."""

    reason: Reason

    @property
    def accepted(self) -> bool:
        """Whether the answer is in the pool, by this attempt or an earlier one."""
        return self.reason in (Reason.ACCEPTED, Reason.REPEATED)

    def __str__(self) -> str:
        return f"{'accepted' if self.accepted else 'turned away'}: {self.reason}"


class ServerLike(Protocol):
    """The part of a server that a device uses, in this process or over a network; the device trusts none of it."""

    def specification_json(self) -> str:
        """The specification, as `Specification.to_json` writes it."""
        ...

    def draw(self) -> Drawn:
        """An instance to update."""
        ...

    def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
        """Take the updated instance of this ticket, or refuse it with a reason."""
        ...


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
        self._held = HeldPool(specification, folder=None if folder is None else Path(folder), history=history, **desk)
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
        self._held.write(self._held.keepsake(), clean=True)


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
