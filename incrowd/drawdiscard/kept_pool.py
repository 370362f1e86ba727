"""The file of an embedded pool: an SQLite database of rows by their versions, and of what else a pool is."""

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd import _files
from incrowd.drawdiscard.pool import PoolState
from incrowd.drawdiscard.tickets import DIGEST
from incrowd.errors import ConfigError, DataError

FILE, SPECIFICATION, LOCK = "pool.sqlite", "specification.json", "lock"
"""The files of a server's folder."""

RUNNING_MB = 1
"""Megabytes of replaced versions that are kept while the server runs; all are when it ends."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS rows (version INTEGER PRIMARY KEY, weights BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS visits (account BLOB PRIMARY KEY, day TEXT NOT NULL, count INTEGER NOT NULL)",
)


@dataclass(frozen=True, eq=False)
class Keepsake:
    """All that a store keeps: the pool, what the test has learnt, digests, counts and whether answers wait.

    `visits` are a day, and how many answers of it each account has in the pool that had none when it was kept last.
    """

    pool: PoolState
    test: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    taken: tuple[bytes, ...] = ()
    turned: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
    visits: tuple[str, Mapping[bytes, int]] = ("", MappingProxyType({}))


class KeptPool:
    """A pool on disk, for one server at a time and one thread at a time.

    Guarantee: `write` replaces what was there in one step, on disk when it returns; rows that are there already are
    not written again. Nobody but the user can read the file.

    Edge cases: a folder that another server has open, or that has the pool of another specification, is refused
    (`ConfigError`); a file that was damaged, and one without its key, too (`DataError`). Where there is no room on the
    disk, `write` raises `OSError`, what was there before stays, and it may be tried again.
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

    def read(self) -> Keepsake | None:
        """What was kept last; None where nothing was kept yet."""
        try:
            state = dict(self._database.execute("SELECT name, content FROM state"))
            rows = dict(self._database.execute("SELECT version, weights FROM rows"))
            visits = self._database.execute("SELECT account, day, count FROM visits").fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error
        if "pool" not in state:
            if self._stated[0].exists():  # it is written after the first pool
                raise self._damaged(ValueError("its pool is gone"))
            return None
        try:
            told, taken = json.loads(state["pool"]), state["taken"]
            day = max((row[1] for row in visits), default="")
            keepsake = Keepsake(
                pool=_pool(told, state["average"], rows),
                test=unpacked(state["test"]),
                taken=tuple(taken[place : place + DIGEST] for place in range(0, len(taken), DIGEST)),
                turned=told["turned"],
                paused=told["paused"],
                visits=(day, {account: count for account, its, count in visits if its == day}),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise self._damaged(error) from error
        self._written = set(rows)
        return keepsake

    def write(self, keepsake: Keepsake, *, clean: bool) -> None:
        """Keep this. `clean` says that it is the last word.

        Before that only the newest of the replaced versions are written, `RUNNING_MB` of them: after a crash, answers
        that descend from others are late, and their devices draw again.
        """
        pool = keepsake.pool
        known = len(pool.replaced) if clean else RUNNING_MB * 2**20 // pool.rows[0].nbytes
        replaced = dict(list(pool.replaced.items())[max(0, len(pool.replaced) - known) :])
        rows = dict(zip(pool.versions, pool.rows, strict=True)) | replaced
        told = {
            "versions": pool.versions,
            "replaced": list(replaced),
            "counts": [pool.draws, pool.discards, pool.looks],
            "last": pool.last,
            "turned": dict(keepsake.turned),
            "paused": keepsake.paused,
            "clean": clean,
        }
        state = {
            "pool": json.dumps(told).encode(),
            "taken": b"".join(keepsake.taken),
            "test": packed(keepsake.test),
            "average": b"" if pool.average is None else pool.average.tobytes(),
        }
        new, old = rows.keys() - self._written, self._written - rows.keys()
        try:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany("DELETE FROM rows WHERE version = ?", [(version,) for version in old])
                pairs = ((version, rows[version].astype("<f4", copy=False).tobytes()) for version in new)
                self._database.executemany("INSERT INTO rows VALUES (?, ?)", pairs)
                self._database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", state.items())
                day, counts = keepsake.visits
                self._database.execute("DELETE FROM visits WHERE day < ?", (day,))
                visits = ((account, day, count) for account, count in counts.items())
                self._database.executemany("INSERT OR REPLACE INTO visits VALUES (?, ?, ?)", visits)
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self._path} could not be written: {error}") from error
        self._written = set(rows)
        place, text = self._stated
        if not place.exists():
            _files.write(place, text)

    @property
    def clean(self) -> bool:
        """Whether the server that had this last said that nothing is missing."""
        kept = self._database.execute("SELECT content FROM state WHERE name = 'pool'").fetchone()
        return kept is None or bool(json.loads(kept[0])["clean"])

    def key(self, fresh: bytes) -> bytes:
        """The key of the tickets: the one that is there, or this new one, which is kept."""
        self._database.execute("INSERT OR IGNORE INTO state VALUES ('key', ?)", (fresh,))
        kept: bytes = self._database.execute("SELECT content FROM state WHERE name = 'key'").fetchone()[0]
        if len(kept) != len(fresh):
            raise self._damaged(ValueError(f"its key has {len(kept)} bytes"))
        return kept

    def close(self) -> None:
        """Let go of the file."""
        self._handles.close()

    def _begin(self, specification: str) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        for table in _TABLES:
            self._database.execute(table)
        (sound,) = self._database.execute("PRAGMA quick_check").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        own = specification.encode()
        self._database.execute("INSERT OR IGNORE INTO state VALUES ('specification', ?)", (own,))
        kept = self._database.execute("SELECT content FROM state WHERE name = 'specification'").fetchone()[0]
        if kept != own:
            remedy = "it has the pool of another specification: give that one, or another folder"
            raise ConfigError(field="folder", value=str(self._path.parent), remedy=remedy)

    def _damaged(self, error: Exception) -> DataError:
        return DataError(f"{self._path} cannot be used: {error}; put a copy back, or begin in another folder")


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays as a safetensors file."""
    from safetensors.numpy import save

    return bytes(save({name: np.array(array, order="C") for name, array in arrays.items()}))


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that `packed` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(content))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _pool(told: Mapping[str, Any], average: bytes, rows: Mapping[int, bytes]) -> PoolState:
    """The state of a pool as it was written; `ValueError` where it is not whole."""
    versions, replaced = ([int(version) for version in told[name]] for name in ("versions", "replaced"))
    draws, discards, looks = map(int, told["counts"])
    held = {version: np.frombuffer(rows[version], "<f4") for version in (*versions, *replaced)}
    mean = np.frombuffer(average, np.float64) if average else None
    numbers = [*held.values(), *([] if mean is None else [mean])]
    if len({len(row) for row in numbers}) != 1 or not all(np.isfinite(row).all() for row in numbers):
        raise ValueError("its rows are not so many numbers each")
    if len(held) != len(versions) + len(replaced) or min(draws, discards, looks, *held) < 0:
        raise ValueError("its versions or counts are none")
    return PoolState(
        rows=[held[version] for version in versions],
        versions=versions,
        replaced={version: held[version] for version in replaced},
        draws=draws,
        discards=discards,
        average=mean,
        looks=looks,
        last=int(told["last"]),
    )
