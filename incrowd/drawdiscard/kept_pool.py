"""A server's pool in memory, with the desk in front of it and the SQLite file behind it."""

import json
import os
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from incrowd import _files
from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.desk import DIGEST, KEY_BYTES, Desk, DeskSettings, Reason, Returned, Visit
from incrowd.drawdiscard.pool import HISTORY, Instance, Pool, PoolState
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError

FILE, SPECIFICATION, LOCK = "pool.sqlite", "specification.json", "lock"
"""The files of a server's folder."""

RUNNING_MB = 1  # megabytes of replaced versions that a running server writes; at its end it writes all
REMEMBERED = 4096  # a pool recognises at least this many of the last accepted answers: see `known_again`
AFTER_A_CRASH = 2**32  # a crashed server may have handed out this many versions more: their numbers stay unused

_TABLES = (
    "CREATE TABLE IF NOT EXISTS rows (version INTEGER PRIMARY KEY, weights BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS visits (account BLOB PRIMARY KEY, day TEXT NOT NULL, count INTEGER NOT NULL)",
)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A snapshot of a server's pool.

    `visits` are a day, and the number of its answers in the pool for each account that has new ones.
    """

    pool: PoolState
    test: Mapping[str, NDArray[Any]]
    taken: tuple[bytes, ...]
    turned: Mapping[str, int]
    visits: tuple[str, Mapping[bytes, int]]


class SqlitePool:
    """A pool on disk, for one server and one thread at a time.

    Guarantee: `write` replaces the last snapshot in one step, on disk when it returns; it writes new rows alone. Only
    the user can read the file.

    Edge cases: a folder that another server has open, or of another specification, is a `ConfigError`; a damaged file,
    or one without its key, a `DataError`. On a full disk `write` raises `OSError` and the last snapshot stays.
    """

    def __init__(self, folder: Path, *, specification: str) -> None:
        _files.folder(folder)
        self._path = folder / FILE
        self._held = _files.take(folder / LOCK, wait=False)
        if self._held is None:
            remedy = "another server has it open: stop that one, or choose another folder"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        with ExitStack() as refused:
            refused.callback(os.close, self._held)
            _files.create(self._path)
            self._database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            refused.callback(self._database.close)
            try:
                self._begin(specification)
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error
            self._handles = refused.pop_all()
        self._stated = folder / SPECIFICATION, specification
        self._written: set[int] = set()
        self.clean = True  # whether the last server wrote everything before it ended

    def read(self) -> Snapshot | None:
        """The last snapshot, if any."""
        try:
            state = dict(self._database.execute("SELECT name, content FROM state"))
            rows = dict(self._database.execute("SELECT version, weights FROM rows"))
            visits = self._database.execute("SELECT account, day, count FROM visits").fetchall()
            if "pool" not in state:
                if self._stated[0].exists():  # it is written after the first pool
                    raise ValueError("its pool is gone")
                return None
            told, taken = json.loads(state["pool"]), state["taken"]
            day = max((row[1] for row in visits), default="")
            snapshot = Snapshot(
                pool=_pool(told, rows),
                test=unpacked(state["test"]),
                taken=tuple(taken[place : place + DIGEST] for place in range(0, len(taken), DIGEST)),
                turned=told["turned"],
                visits=(day, {account: count for account, its, count in visits if its == day}),
            )
            self.clean = bool(told["clean"])
        except (sqlite3.DatabaseError, KeyError, ValueError, TypeError) as error:
            raise self._damaged(error) from error
        self._written = set(rows)
        return snapshot

    def write(self, snapshot: Snapshot, *, clean: bool) -> None:
        """Write a snapshot; `clean` marks the last one of a server.

        Other snapshots hold only the newest replaced versions, `RUNNING_MB` of them: after a crash the answers to older
        versions are late, and their devices draw again.
        """
        pool = snapshot.pool
        known = len(pool.replaced) if clean else RUNNING_MB * 2**20 // pool.rows[0].nbytes
        replaced = dict(list(pool.replaced.items())[max(0, len(pool.replaced) - known) :])
        rows = dict(zip(pool.versions, pool.rows, strict=True)) | replaced
        told = {
            "versions": pool.versions,
            "replaced": list(replaced),
            "counts": [pool.draws, pool.discards],
            "last": pool.last,
            "turned": dict(snapshot.turned),
            "clean": clean,
        }
        taken, test, (day, counts) = b"".join(snapshot.taken), packed(snapshot.test), snapshot.visits
        state = {"pool": json.dumps(told).encode(), "taken": taken, "test": test}
        new, old = rows.keys() - self._written, self._written - rows.keys()
        pairs = ((version, rows[version].astype("<f4", copy=False).tobytes()) for version in new)
        visits = ((account, day, count) for account, count in counts.items())
        try:
            with self._database as database:
                database.execute("BEGIN IMMEDIATE")
                database.executemany("DELETE FROM rows WHERE version = ?", [(version,) for version in old])
                database.executemany("INSERT INTO rows VALUES (?, ?)", pairs)
                database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", state.items())
                database.execute("DELETE FROM visits WHERE day < ?", (day,))
                database.executemany("INSERT OR REPLACE INTO visits VALUES (?, ?, ?)", visits)
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self._path} could not be written: {error}") from error
        self._written = set(rows)
        place, text = self._stated
        if not place.exists():
            _files.write(place, text)

    def key(self, fresh: bytes) -> bytes:
        """The key of the tickets: the first call keeps this new one."""
        kept = self._first("key", fresh)
        if len(kept) != len(fresh):
            raise self._damaged(ValueError(f"its key has {len(kept)} bytes"))
        return kept

    def close(self) -> None:
        """Close the file and release the folder."""
        self._handles.close()

    def _begin(self, specification: str) -> None:
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", *_TABLES):
            self._database.execute(statement)
        (sound,) = self._database.execute("PRAGMA quick_check").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        own = specification.encode()
        kept = self._first("specification", own)
        if kept != own:
            remedy = "it has the pool of another specification: give that one, or another folder"
            raise ConfigError(field="folder", value=str(self._path.parent), remedy=remedy)

    def _first(self, name: str, content: bytes) -> bytes:
        """The content that was kept first under a name."""
        self._database.execute("INSERT OR IGNORE INTO state VALUES (?, ?)", (name, content))
        kept: bytes = self._database.execute("SELECT content FROM state WHERE name = ?", (name,)).fetchone()[0]
        return kept

    def _damaged(self, error: Exception) -> DataError:
        return DataError(f"{self._path} cannot be used: {error}; put a copy back, or begin in another folder")


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays as a safetensors file."""
    from safetensors.numpy import save

    return bytes(save({name: np.array(array, order="C") for name, array in arrays.items()}))


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that `packed` wrote; other content is a `ValueError`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(content))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _pool(told: Mapping[str, Any], rows: Mapping[int, bytes]) -> PoolState:
    """The state of a pool as `write` wrote it; a `ValueError` if parts are missing."""
    versions, replaced = ([int(version) for version in told[name]] for name in ("versions", "replaced"))
    draws, discards = map(int, told["counts"][:2])  # older files have a third
    held = {version: np.frombuffer(rows[version], "<f4") for version in (*versions, *replaced)}
    if len({len(row) for row in held.values()}) != 1 or not all(np.isfinite(row).all() for row in held.values()):
        raise ValueError("its rows are not so many numbers each")
    if len(held) != len(versions) + len(replaced) or min(draws, discards, *held) < 0:
        raise ValueError("its versions or counts are none")
    return PoolState(
        rows=[held[version] for version in versions],
        versions=versions,
        replaced={version: held[version] for version in replaced},
        draws=draws,
        discards=discards,
        last=int(told["last"]),
    )


class MemoryPool:
    """The pool of a specification, new or from its folder; one thread at a time.

    Guarantee: under seeded randomness it continues after `write` bit for bit. It merges an answer once, however often
    the answer comes. It never gives the number of a version that a crash may have lost to another row.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        folder: Path | None = None,
        history: int = HISTORY,
        **desk: Unpack[DeskSettings],
    ) -> None:
        source = desk["randomness"] = desk.get("randomness") or SystemRandomness()
        fresh = source.stream("tickets").bits(KEY_BYTES // 8).tobytes()
        self.desk = Desk(specification, key=fresh, **desk)  # refuses before it takes
        self.turned: Counter[str] = Counter()
        self._day, self._visits, self._unkept = "", Counter[bytes](), dict[bytes, int]()
        self._known_again = known_again(history=history, instances=specification.instances)
        self._taken: OrderedDict[bytes, None] = OrderedDict()
        self._kept = None if folder is None else SqlitePool(folder, specification=specification.to_json())
        with ExitStack() as refused:
            refused.callback(self.close)
            self.pool = fresh_pool(specification, source, history=history)
            if self._kept is not None:
                self.desk = Desk(specification, key=self._kept.key(fresh), **desk)
                self._go_on(self._kept, source, history)
            refused.pop_all()

    def parent(self, answer: Returned) -> Instance | Reason | None:
        """The version that an answer was drawn from, None if forgotten; `REPEATED` for an answer that it knows."""
        return Reason.REPEATED if answer.digest in self._taken else self.pool.version(answer.ticket.version)

    def enter(self, answer: Returned) -> Reason:
        """Merge an answer into a random instance, unless it is in there already."""
        if answer.digest in self._taken:
            return Reason.REPEATED
        if answer.visit is not None and not self._admitted(answer.visit):
            return Reason.DAY_OVER
        self.pool.take(answer.weights)
        self._taken[answer.digest] = None
        if len(self._taken) > self._known_again:
            self._taken.popitem(last=False)
        return Reason.ACCEPTED

    def snapshot(self) -> Snapshot:
        """A snapshot, at next to no cost."""
        test = {name: np.array(array) for name, array in self.desk.test.state().items()}
        visits = self._day, dict(self._unkept)
        return Snapshot(self.pool.state(), test, tuple(self._taken), dict(self.turned), visits)

    def write(self, snapshot: Snapshot, *, clean: bool) -> None:
        """Write a snapshot; `clean` promises that no answer enters after it."""
        if self._kept is not None:
            self._kept.write(snapshot, clean=clean)
            for account, count in snapshot.visits[1].items():
                if self._unkept.get(account) == count:
                    del self._unkept[account]

    def close(self) -> None:
        """Release the folder."""
        if self._kept is not None:
            self._kept.close()

    def _admitted(self, visit: Visit) -> bool:
        """Count an answer of an account up to its daily limit; a clock put back brings no day back."""
        if visit.day > self._day:
            self._day = visit.day
            self._visits.clear()
            self._unkept.clear()
        if visit.day < self._day or self._visits[visit.account] >= visit.most:
            return False
        self._visits[visit.account] += 1
        self._unkept[visit.account] = self._visits[visit.account]
        return True

    def _go_on(self, kept: SqlitePool, source: Randomness, history: int) -> None:
        found = kept.read()
        if found is None:
            return
        asked = self.desk.specification
        shape = len(found.pool.rows), len(found.pool.rows[0])
        if shape != (asked.instances, asked.size):
            raise DataError(f"the pool of that folder has instances {shape}, not {(asked.instances, asked.size)}")
        lost = 0 if kept.clean else AFTER_A_CRASH
        self.pool = Pool.restore(found.pool, randomness=source, lost=lost, merge=asked.merge, history=history)
        self.desk.test.restore(found.test)
        self._taken = OrderedDict.fromkeys(found.taken)
        self.turned = Counter(found.turned)
        self._day, self._visits = found.visits[0], Counter(found.visits[1])


def known_again(*, history: int, instances: int) -> int:
    """The number of accepted answers to recognise, so that none enters twice.

    A version with an answer is replaced at some time; the pool forgets it `history` answers later, and all answers to
    it are late. One version in ten million outlives sixteen answers per instance.
    """
    return max(REMEMBERED, history + 16 * instances)


def fresh_pool(specification: Specification, randomness: Randomness, *, history: int = HISTORY) -> Pool:
    """The first pool of a specification: around zero, with the stable variance."""
    return Pool.initial(
        np.zeros(specification.size),
        instances=specification.instances,
        update_variance=specification.update_variance,
        randomness=randomness,
        merge=specification.merge,
        history=history,
    )
