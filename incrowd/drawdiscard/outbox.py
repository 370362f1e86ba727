"""Keeps a device's answers that are paid for and have not arrived: the released whole numbers, and the bytes to send.

Putting the numbers on an instance is post-processing: an answer that came too late goes out again on a newer instance,
and an answer whose reply was lost goes out again as the same bytes.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from incrowd import _files
from incrowd.drawdiscard.desk import Drawn
from incrowd.drawdiscard.pool import Instance
from incrowd.errors import DataError
from incrowd.privacy.mechanism.grid import Whole

MOST_WAITING = 16  # the outbox keeps the last answers to this many specifications
_DIGEST = 32


@dataclass(frozen=True, eq=False)
class Waiting:
    """Released whole numbers for the specification of this fingerprint, and the update and ticket that carry them."""

    fingerprint: str
    released: Whole
    update: Instance
    ticket: bytes

    @classmethod
    def of(cls, drawn: Drawn, released: Whole) -> Self:
        """The numbers on an instance that the device drew."""
        return cls(drawn.fingerprint, released, stepped(drawn.weights, released, gamma=drawn.gamma), drawn.ticket)

    def to_bytes(self) -> bytes:
        """The content of a file, with a digest that detects damage."""
        kept = {
            "fingerprint": self.fingerprint,
            "step": self.released.step,
            "steps": self.released.steps.astype("<i8").tobytes().hex(),
            "update": self.update.astype("<f4").tobytes().hex(),
            "ticket": self.ticket.hex(),
        }
        content = json.dumps(kept).encode()
        return hashlib.sha256(content).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The answer in the content of a file; damaged content is a `DataError`."""
        digest, content = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise DataError("a waiting answer is damaged")
        kept = json.loads(content)
        steps, update, ticket = (bytes.fromhex(kept[name]) for name in ("steps", "update", "ticket"))
        released = Whole(np.frombuffer(steps, "<i8").astype(np.int64), kept["step"])
        return cls(kept["fingerprint"], released, np.frombuffer(update, "<f4").astype(np.float32), ticket)


def stepped(weights: Instance, released: Whole, *, gamma: float) -> Instance:
    """An instance after a step of size gamma along released whole numbers: in float64, then rounded to float32.

    Every language gives the same bits: gamma times the step's value, times a whole number, taken from a weight.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moved = weights.astype(np.float64) - (gamma * released.step) * released.steps.astype(np.float64)
        return moved.astype(np.float32)


@dataclass(frozen=True)
class Outbox:
    """Waiting answers, a file for each specification beside a device's ledger; in memory without a path.

    Guarantee: when `keep` returns, the answer is on disk, and stays until `clear`, unless the device keeps answers to
    `MOST_WAITING` other specifications after it. A damaged file counts as none.
    """

    path: Path | None
    _memory: dict[str, Waiting] = field(default_factory=dict, repr=False, compare=False)

    def keep(self, waiting: Waiting) -> None:
        """Keep an answer; it is on disk when this returns."""
        if self.path is None:
            self._memory[waiting.fingerprint] = waiting
            return
        place = self._place(self.path, waiting.fingerprint)
        _files.write(place, waiting.to_bytes())
        files = [other for other in place.parent.iterdir() if other.name.startswith(f"{self.path.name}-")]
        kept = [other for other in files if other.suffix != _files.PART]
        for old in sorted(kept, key=lambda other: other.stat().st_mtime_ns)[:-MOST_WAITING]:
            old.unlink(missing_ok=True)

    def waiting(self, fingerprint: str) -> Waiting | None:
        """The waiting answer to this specification, if any."""
        if self.path is None:
            return self._memory.get(fingerprint)
        try:
            found = Waiting.from_bytes(self._place(self.path, fingerprint).read_bytes())
        except (FileNotFoundError, DataError):
            return None
        return found if found.fingerprint == fingerprint else None

    def clear(self, fingerprint: str) -> None:
        """Forget an answer that has arrived. If a crash brings it back, the server counts it once."""
        if self.path is None:
            self._memory.pop(fingerprint, None)
        else:
            self._place(self.path, fingerprint).unlink(missing_ok=True)

    @staticmethod
    def _place(path: Path, fingerprint: str) -> Path:
        return Path(f"{path}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}")
