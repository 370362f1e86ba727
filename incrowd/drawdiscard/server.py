"""The server of draw and discard: it hands out instances, looks at what comes back, and keeps the pool on disk.

Nothing here needs a network: `Server` is what runs behind one, and `ServerLike` is what a device needs of it, in the
same process or on the other side of a wire.
"""

import hashlib
import os
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _files, _validate
from incrowd._random import Floats, Randomness, SystemRandomness
from incrowd.drawdiscard.pool import DIGEST, Pool, Snapshot, as_weights
from incrowd.drawdiscard.predictor import Predictor
from incrowd.drawdiscard.spam import HonestUpdates, SpamTest, spam_threshold
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.statement import guess, rounded_up

REMEMBERED = 4096
"""So many of the last accepted answers are known again."""

SPECIFICATION, POOL, LOCK = "specification.json", "pool.safetensors", "lock"
"""The files of a server's folder."""


class Reason(StrEnum):
    """What became of an answer: a name for programs, a sentence for people."""

    ACCEPTED = "it has replaced an instance of the pool"
    REPEATED = "it was accepted before, and counts once"
    OTHER_SPECIFICATION = "it answers another specification than this server's"
    NOT_WEIGHTS = "it is not one finite number for each weight of the model"
    FAR = "hardly an honest device would have sent it: it is too far from the pool"


@dataclass(frozen=True)
class Outcome:
    """Whether an answer was accepted, and why (not)."""

    reason: Reason

    @property
    def accepted(self) -> bool:
        """Whether it is in, now or since an earlier attempt."""
        return self.reason in (Reason.ACCEPTED, Reason.REPEATED)

    def __str__(self) -> str:
        return f"{'accepted' if self.accepted else 'turned away'}: {self.reason}"


class Drawn(NamedTuple):
    """An instance for a device to update, and the fingerprint of the specification that it is of."""

    weights: Floats
    fingerprint: str


class ServerLike(Protocol):
    """All that a device needs of a server. What it gives is data; a device trusts none of it."""

    def specification_json(self) -> str:
        """What is asked of devices, as `Specification.to_json` writes it."""
        ...

    def draw(self) -> Drawn:
        """An instance to update."""
        ...

    def offer(self, update: Floats, fingerprint: str) -> Outcome:
        """Take the updated instance, an answer to the specification of this fingerprint, or say why not."""
        ...


class Server:
    """A specification, its pool of instances, a test against spam, and all of it in a folder.

    `turned_away` is the share of honest answers that the test may turn away, `in_flight` how many devices are between
    their draw and their answer. The pool goes to the folder with every `keep_every`-th accepted answer; without a
    folder it is forgotten with the process.

    Guarantee: an `offer` happens as a whole or not at all, whatever is offered and however many threads offer. When it
    says accepted, the answer is in the pool and, with `keep_every` = 1, on disk. A server that was killed and is opened
    again goes on bit for bit from there: with a larger number, at most the last `keep_every` - 1 accepted answers are
    lost. An answer that is offered again, after a lost reply say, counts once. The files are plain numbers and JSON,
    for this user alone; no device's promise rests on them.

    Edge cases: a folder with the pool of another specification is refused, as is one that another server has open
    (`ConfigError`), and files that were damaged or exchanged (`DataError`). One instance, and noise ``none``, are
    refused: there would be nothing to test against. Only the last `REMEMBERED` accepted answers are known again.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        folder: str | PathLike[str] | None = None,
        turned_away: float = 0.01,
        in_flight: int = 0,
        keep_every: int = 1,
        randomness: Randomness | None = None,
    ) -> None:
        _validate.count(keep_every=keep_every)
        self.specification = specification
        self._text, self._fingerprint = specification.to_json(), specification.fingerprint
        self._folder = None if folder is None else Path(folder)
        self._keep_every = keep_every
        self._lock = RLock()
        self._unkept = 0
        self._closed = False
        honest = HonestUpdates.of(specification.mechanism, gamma=specification.gamma)
        if not 1e-30 < honest.noise_scale < 1e20:
            raise ConfigError(
                field="gamma",
                value=specification.gamma,
                remedy="no pool has room for such steps: give a gamma nearer 1",
            )
        threshold = spam_threshold(
            instances=specification.instances,
            weights=specification.size,
            rate=turned_away,
            honest=honest,
            in_flight=in_flight,
        )
        self._held = None if self._folder is None else _held(self._folder)
        with ExitStack() as refused:
            refused.callback(self.close)
            snapshot = self._kept()
            source = randomness or SystemRandomness()
            pool = _fresh(specification, source) if snapshot is None else Pool.restore(snapshot, randomness=source)
            self._test = SpamTest(pool, threshold=threshold, honest=honest, in_flight=in_flight, snapshot=snapshot)
            self._taken = OrderedDict.fromkeys(() if snapshot is None else snapshot.taken)
            if snapshot is None:
                self._begin()
            refused.pop_all()

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> "Server":
        """The server of a folder, as its specification says, with all else by default."""
        path = Path(folder) / SPECIFICATION
        if not path.is_file():
            raise ConfigError(
                field="folder", value=str(folder), remedy="no server was begun there: give Server a specification"
            )
        return cls(Specification.from_json(path.read_bytes()), folder=folder)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Keep what is not kept yet, and let go of the folder; from then on nothing is taken."""
        with self._lock:
            self._closed = True
            if self._held is not None:
                if self._unkept:
                    self.keep()
                os.close(self._held)
                self._held = None

    def specification_json(self) -> str:
        """See `ServerLike.specification_json`."""
        return self._text

    def draw(self) -> Drawn:
        """A copy of an instance, each with the same chance; nobody notes which one it was."""
        return Drawn(self._pool.draw(), self._fingerprint)

    def offer(self, update: ArrayLike, fingerprint: str) -> Outcome:
        """See `ServerLike.offer`; nothing is noted of who offers."""
        if fingerprint != self._fingerprint:
            return Outcome(Reason.OTHER_SPECIFICATION)
        try:
            arrived = as_weights(update, self.specification.size)
        except DataError:
            return Outcome(Reason.NOT_WEIGHTS)
        arrived = arrived.copy()  # so that nobody changes it after it was looked at
        digest = hashlib.sha256(arrived.tobytes()).digest()[:DIGEST]
        with self._lock:
            if self._closed:
                raise ConfigError(field="server", value="closed", remedy="open it again before it is offered anything")
            reason = self._entered(arrived, digest)
            if reason is not Reason.FAR and self._unkept >= self._keep_every:
                self.keep()  # a repeated one, too: the disk may have been full the first time
        return Outcome(reason)

    @property
    def accepted(self) -> int:
        """How many answers were accepted so far."""
        return self._pool.discards

    def model(self) -> Predictor:
        """The average of the instances, as something that predicts."""
        return Predictor(self.specification, self._pool.weights())

    def snapshot(self) -> Snapshot:
        """All that the pool, the test and the memory of answers are."""
        with self._lock:
            return replace(self._test.snapshot(), taken=tuple(self._taken), specification=self._fingerprint)

    def keep(self) -> None:
        """Put the pool on disk, now."""
        with self._lock:
            if self._folder is not None:
                _files.write(self._folder / POOL, self.snapshot().to_bytes())
            self._unkept = 0

    def statement(self) -> str:
        """What a contribution and a device are promised, in plain words."""
        asked = self.specification
        odds = rounded_up(100 * guess(asked.mechanism.epsilon, asked.mechanism.delta or 0.0))
        each = "each released number on its own" if asked.mechanism.privacy == "feature" else "the whole contribution"
        return (
            f"A contribution: {asked.describe()} In other words: someone who sees {each}, and has to say which of two "
            f"tables the device has, even odds to begin with, is right at most {odds} % of the time.\n"
            "A device: what it spends adds up in its own ledger, with limits that its owner set; this server knows "
            "neither who contributes nor how often. Nobody is trusted: the noise is added before anything leaves the "
            f"device.\nThis server: {self.accepted} contributions are in its pool of {asked.instances} instances."
        )

    @property
    def _pool(self) -> Pool:
        return self._test.pool

    def _entered(self, arrived: Floats, digest: bytes) -> Reason:
        if digest in self._taken:
            return Reason.REPEATED
        if not self._test.accepts(arrived):
            return Reason.FAR
        self._pool.discard(arrived)
        self._unkept += 1
        self._taken[digest] = None
        if len(self._taken) > REMEMBERED:
            self._taken.popitem(last=False)
        return Reason.ACCEPTED

    def _kept(self) -> Snapshot | None:
        """What the folder holds, if it holds a pool of this specification."""
        if self._folder is None or not (self._folder / POOL).exists():
            return None
        path = self._folder / POOL
        try:
            snapshot = Snapshot.from_bytes(path.read_bytes())
        except DataError as error:
            raise DataError(f"{path} cannot be used: {error}; put a copy back, or begin in another folder") from error
        if snapshot.specification != self._fingerprint:
            remedy = "it has the pool of another specification: give that one, or another folder"
            raise ConfigError(field="folder", value=str(self._folder), remedy=remedy)
        expected = self.specification.instances, self.specification.size
        if snapshot.instances.shape != expected:
            raise DataError(f"{path} cannot be used: it has instances {snapshot.instances.shape}, not {expected}")
        return snapshot

    def _begin(self) -> None:
        if self._folder is not None:
            _files.write(self._folder / SPECIFICATION, self._text)
            self.keep()


def _fresh(specification: Specification, randomness: Randomness) -> Pool:
    return Pool.initial(
        np.zeros(specification.size),
        instances=specification.instances,
        update_variance=specification.update_variance,
        randomness=randomness,
    )


def _held(folder: Path) -> int:
    """The lock of a folder, for this server alone."""
    _files.folder(folder)
    descriptor = _files.take(folder / LOCK, wait=False)
    if descriptor is None:
        remedy = "another server has it open: stop that one, or choose another folder"
        raise ConfigError(field="folder", value=str(folder), remedy=remedy)
    return descriptor
