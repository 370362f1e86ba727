"""A device's answers that are paid for and have not arrived yet: whole numbers with their noise, whatever they go to.

What is paid for is the released whole numbers. Which instance they are put on is post-processing: an answer that came
too late goes out again on a newer one, and one whose reply was lost goes out again as the same bytes.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from incrowd import _files
from incrowd.drawdiscard.desk import Drawn
from incrowd.drawdiscard.pool import Instance
from incrowd.errors import DataError
from incrowd.privacy.mechanism.grid import Whole

MOST_WAITING = 16
"""Answers to so many specifications wait at a time; the oldest goes first."""

_DIGEST = 32


@dataclass(frozen=True, eq=False)
class Waiting:
    """Released whole numbers that answer the specification of this fingerprint, and what was sent of them last.

    `sent` are the update that was, or was about to be, sent, and the ticket of what it was drawn from.
    """

    fingerprint: str
    released: Whole
    sent: tuple[Instance, bytes] | None = None

    def on(self, drawn: Drawn) -> "Waiting":
        """The same numbers, put on an instance that was drawn."""
        return replace(self, sent=(stepped(drawn.weights, self.released, gamma=drawn.gamma), drawn.ticket))

    def to_bytes(self) -> bytes:
        """All of it, with a digest that tells damage."""
        update, ticket = self.sent or (None, None)
        head = {
            "fingerprint": self.fingerprint,
            "size": len(self.released.steps),
            "step": self.released.step,
            "ticket": None if ticket is None else ticket.hex(),
        }
        numbers = self.released.steps.astype("<i8").tobytes()
        numbers += b"" if update is None else update.astype("<f4").tobytes()
        content = json.dumps(head).encode() + b"\n" + numbers
        return hashlib.sha256(content).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> "Waiting":
        """What `to_bytes` made; anything else is a `DataError`."""
        digest, content = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise DataError("an answer that waited was damaged")
        head, _, numbers = content.partition(b"\n")
        stated = json.loads(head)
        size = stated["size"]
        released = Whole(np.frombuffer(numbers[: 8 * size], "<i8").astype(np.int64), stated["step"])
        if stated["ticket"] is None:
            return cls(stated["fingerprint"], released)
        update = np.frombuffer(numbers[8 * size :], "<f4").astype(np.float32)
        return cls(stated["fingerprint"], released, (update, bytes.fromhex(stated["ticket"])))


def stepped(weights: Instance, released: Whole, *, gamma: float) -> Instance:
    """An instance with a step of size gamma along released whole numbers: in float64, then rounded to float32.

    Every language gives the same bits: gamma times the step's value, times a whole number, taken from a weight.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moved = weights.astype(np.float64) - (gamma * released.step) * released.steps.astype(np.float64)
        return moved.astype(np.float32)


@dataclass(frozen=True)
class Outbox:
    """Answers that wait, a file a specification, beside a device's ledger; without a path, only in memory.

    Guarantee: when `keep` returns, the answer is on disk, and it stays until it is cleared, whatever is kept for other
    specifications (the last `MOST_WAITING` of them). A file that was damaged counts as none.
    """

    path: Path | None
    _memory: dict[str, Waiting] = field(default_factory=dict, repr=False, compare=False)

    def keep(self, waiting: Waiting) -> None:
        """Keep an answer, on disk when this returns."""
        if self.path is None:
            self._memory[waiting.fingerprint] = waiting
            return
        _files.write(self._place(waiting.fingerprint), waiting.to_bytes())
        kept = sorted(self._places(), key=lambda place: place.stat().st_mtime_ns)
        for place in kept[:-MOST_WAITING]:
            place.unlink(missing_ok=True)

    def waiting(self, fingerprint: str) -> Waiting | None:
        """The answer to this specification that waits, if one does."""
        if self.path is None:
            return self._memory.get(fingerprint)
        try:
            found = Waiting.from_bytes(self._place(fingerprint).read_bytes())
        except (FileNotFoundError, DataError):
            return None
        return found if found.fingerprint == fingerprint else None

    def clear(self, fingerprint: str) -> None:
        """It has arrived. Should a crash bring it back, it is offered once more, and counts once."""
        if self.path is None:
            self._memory.pop(fingerprint, None)
        else:
            self._place(fingerprint).unlink(missing_ok=True)

    def __len__(self) -> int:
        """How many answers wait."""
        return len(self._memory) if self.path is None else len(self._places())

    def _place(self, fingerprint: str) -> Path:
        name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        return Path(f"{self.path}-{name}")

    def _places(self) -> list[Path]:
        path = Path(f"{self.path}-")
        return [
            place
            for place in path.parent.iterdir()
            if place.name.startswith(path.name) and not place.name.endswith(_files.PART)
        ]
