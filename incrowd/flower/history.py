"""What a server has asked in a plan, round by round: it goes along with every question.

Two servers that go on from one copy ask different questions, because their noise is different. A party that was asked
by one of them notices the other as soon as that asks it anything later: what it was asked is not in that one's history.
"""

import hashlib
import os
from pathlib import Path

from incrowd import _files
from incrowd.errors import DataError

DIGEST = 32
"""The bytes of a question's digest, which stand for it in a history; a round that was skipped has zeros."""

ASKED = "asked.bin"
"""The file in a run's folder."""


class AskedBefore:
    """The digests of all questions of a plan, each on disk before it is asked.

    The file begins with the plan's fingerprint. Without a file it is kept for as long as the process lasts.

    Guarantee: `before(n)` is the same in every life of the server, unless its folder is exchanged for another copy.

    Edge cases: another question in a round that was asked for, and a file of another plan, are a `DataError`: parties
    would refuse what comes of it. What was cut off in the middle of a digest was never asked.
    """

    def __init__(self, path: Path | None = None, *, plan: str = "") -> None:
        self._plan = bytes.fromhex(plan)
        self._path = path
        content = path.read_bytes() if path is not None and path.exists() else self._plan
        if content[:DIGEST] != self._plan:
            raise DataError(f"{path} is the history of another plan: put back the folder's own")
        self._asked = bytearray(content[DIGEST : len(content) // DIGEST * DIGEST])

    def before(self, number: int) -> bytes:
        """What was asked before a round."""
        return bytes(self._asked[: DIGEST * number].ljust(DIGEST * number, b"\0"))

    def add(self, number: int, digest: str) -> None:
        """Remember what is about to be asked in a round."""
        place, new = slice(DIGEST * number, DIGEST * (number + 1)), bytes.fromhex(digest)
        known = bytes(self._asked[place])
        if known == new:
            return
        if any(known) or len(self._asked) > place.stop:
            raise DataError(
                f"round {number} was asked for otherwise, or passed over, before: "
                "the run's folder is not whole, or an old copy"
            )
        self._asked[:] = self.before(number) + new
        if self._path is not None:
            self._write(self._path, DIGEST * number)

    def _write(self, path: Path, known: int) -> None:
        if not path.exists():
            _files.write(path, self._plan)
        with path.open("r+b") as file:
            written = min(known, path.stat().st_size // DIGEST * DIGEST - DIGEST)
            file.seek(DIGEST + written)
            file.write(self._asked[written:])
            file.flush()
            os.fsync(file.fileno())


def chained(history: bytes) -> str:
    """What stands for a history as a whole."""
    return hashlib.sha256(history).hexdigest()
