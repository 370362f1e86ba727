"""What a party remembers of what it was asked: on its own disk, before anything is sent."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from incrowd import _files

_TABLES = """
CREATE TABLE IF NOT EXISTS offers (plan TEXT PRIMARY KEY, at TEXT, server TEXT, offer TEXT);
CREATE TABLE IF NOT EXISTS questions (plan TEXT, round INTEGER, at TEXT, digest TEXT, history TEXT, answer BLOB,
                                      PRIMARY KEY (plan, round));
CREATE TABLE IF NOT EXISTS refusals (at TEXT, server TEXT, plan TEXT, round INTEGER, why TEXT);
"""
_REFUSALS, _LONGEST = 10_000, 500


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """A question that was taken up: its digest, what stands for it and all before it, and its answer, if it is kept."""

    digest: str
    history: str
    answer: bytes | None


class PartyMemory:
    """The offers that a party accepted, the questions it took up with its answers, and what it refused.

    Guarantee: what was written is on the disk when a call returns. The file is for this user alone.

    Edge cases: of each plan the last `keep` answers are kept; of older ones there is the question alone.
    """

    def __init__(self, connection: sqlite3.Connection, *, keep: int) -> None:
        self._keep = keep
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, keep: int = 10) -> "PartyMemory":
        """Open the file, or begin one."""
        if not path.exists():
            _files.create(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_TABLES)
        return cls(connection, keep=keep)

    @classmethod
    def read(cls, path: Path) -> "PartyMemory":
        """Open a file that is there, to look at it only."""
        return cls(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True), keep=0)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def accept(self, plan: str, *, server: str, offer: bytes) -> None:
        """Remember an offer, as the server signed it."""
        self._connection.execute("INSERT OR IGNORE INTO offers VALUES (?, ?, ?, ?)", (plan, _now(), server, offer))

    def offer(self, plan: str) -> bytes | None:
        """The offer of a plan, as it was accepted."""
        found = self._connection.execute("SELECT offer FROM offers WHERE plan = ?", (plan,)).fetchone()
        return None if found is None else bytes(found[0])

    def offered(self) -> int:
        """The bytes of all offers that were ever accepted; 0 where none was."""
        found: int = self._connection.execute("SELECT coalesce(sum(length(offer)), 0) FROM offers").fetchone()[0]
        return found

    def question(self, plan: str, number: int) -> TakenUp | None:
        """What was asked in a round."""
        words = "SELECT digest, history, answer FROM questions WHERE plan = ? AND round = ?"
        found = self._connection.execute(words, (plan, number)).fetchone()
        return None if found is None else TakenUp(digest=found[0], history=found[1], answer=found[2])

    def last(self, plan: str) -> int:
        """The last round that was asked for; -1 before the first."""
        found: int = self._connection.execute(
            "SELECT coalesce(max(round), -1) FROM questions WHERE plan = ?", (plan,)
        ).fetchone()[0]
        return found

    def take_up(self, plan: str, number: int, digest: str, history: str) -> None:
        """Remember a question, before anything is done for it."""
        row = (plan, number, _now(), digest, history)
        self._connection.execute("INSERT INTO questions VALUES (?, ?, ?, ?, ?, NULL)", row)

    def keep(self, plan: str, number: int, answer: bytes) -> None:
        """Remember the answer, before it is sent."""
        with self._whole() as connection:
            connection.execute("UPDATE questions SET answer = ? WHERE plan = ? AND round = ?", (answer, plan, number))
            old = "UPDATE questions SET answer = NULL WHERE plan = ? AND round <= ? AND answer IS NOT NULL"
            connection.execute(old, (plan, number - self._keep))

    def refuse(self, why: str, *, server: str, plan: str, number: int | None) -> None:
        """Remember what was refused: a round by its number, an offer by None.

        Guarantee: however often something is refused, and whatever is said of it, this takes a few megabytes at most.
        It can be shown in a terminal: why may have words of the server's.
        """
        shown = "".join(one if one.isprintable() else " " for one in why[:_LONGEST])
        with self._whole() as connection:
            connection.execute("INSERT INTO refusals VALUES (?, ?, ?, ?, ?)", (_now(), server, plan, number, shown))
            old = "DELETE FROM refusals WHERE rowid NOT IN (SELECT rowid FROM refusals ORDER BY rowid DESC LIMIT ?)"
            connection.execute(old, (_REFUSALS,))

    def refusals(self) -> list[dict[str, Any]]:
        """What was refused, in order."""
        found = self._connection.execute("SELECT at, server, plan, round, why FROM refusals ORDER BY rowid")
        return [dict(zip(("at", "server", "plan", "round", "why"), row, strict=True)) for row in found]

    def asked(self) -> set[tuple[str, int]]:
        """The plans and rounds in which something was asked for."""
        return set(self._connection.execute("SELECT plan, round FROM questions"))

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            yield self._connection


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
