"""Read files and databases of a folder without changing a byte, while others may be writing."""

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from incrowd.errors import DataError

_PATIENCE = 10.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def json_in(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    try:
        _check_plain(path)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): put it back, or allow this user to") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}): put it back as it was") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is not what a run writes there: put it back as it was")
    return found


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database to read.

    Guarantee: nothing is written, migrated or made. A database that keeps a log beside it (WAL) is read through it.

    Edge cases: a damaged file is a `DataError`.
    """
    _check_plain(path)
    unlogged = not path.with_name(f"{path.name}-wal").exists() and not path.with_name(f"{path.name}-journal").exists()
    mode = "mode=ro&immutable=1" if unlogged and _has_log(path) else "mode=ro"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=_PATIENCE)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection
    except sqlite3.Error as error:
        damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
        remedy = "put it back as it was" if damaged else "after a crash in the middle of a write, go on with the run"
        raise DataError(f"{path} cannot be read now ({error}): {remedy}") from error


def _check_plain(path: Path) -> None:
    """Refuse links and whatever is no file."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DataError(f"{path} is no plain file of the run, so it is not shown: put the right one there")


def _has_log(path: Path) -> bool:
    """Whether the database was last written with a log (bytes 18 and 19 of its header), which a reader would make."""
    try:
        with path.open("rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"
    except OSError:
        return False
