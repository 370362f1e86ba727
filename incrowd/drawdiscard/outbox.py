"""A device's one answer that is paid for and has not arrived yet."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from incrowd import _files
from incrowd._random import Floats
from incrowd.drawdiscard.pool import as_weights
from incrowd.errors import DataError


@dataclass(frozen=True)
class Outbox:
    """A file for one answer; without a path, nothing is kept.

    What is in it is noised and paid for already: it tells no more than what was to be sent.

    Edge cases: a file that was damaged, and an answer to another specification, count as none.
    """

    path: Path | None

    def keep(self, fingerprint: str, update: Floats) -> None:
        """Keep an answer, on disk when this returns."""
        if self.path is not None:
            _files.write(self.path, bytes.fromhex(fingerprint) + update.astype("<f8").tobytes())

    def waiting(self, fingerprint: str) -> Floats | None:
        """The answer to this specification that waits, if one does."""
        if self.path is None or not self.path.exists():
            return None
        content, expected = self.path.read_bytes(), bytes.fromhex(fingerprint)
        if content[: len(expected)] != expected:
            return None
        numbers = content[len(expected) :]
        if not numbers or len(numbers) % 8:
            return None
        update = np.frombuffer(numbers, "<f8")
        try:
            return as_weights(update, len(update)).copy()
        except DataError:
            return None

    def clear(self) -> None:
        """It has arrived. Should a crash bring it back, it is offered once more, and counts once."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
