"""Files that are there in full, or not at all, and that only this user may read.

Folders made here are 0700 and files 0600, under any umask, so that other users cannot read private data.
"""

import os
import shutil
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from incrowd.errors import ConfigError, DataError

PART = ".part"  # the ending of a file that was not finished
PUBLIC_TIME = 315_532_800  # the first second of 1980: the date of files whose true date would reveal a duration
_FOLDER, _FILE = 0o700, 0o600


def folder(path: Path) -> None:
    """Make a folder, and those that it is to be in; one that is there stays as it is."""
    if path.is_dir():
        return
    folder(path.parent)
    path.mkdir(mode=_FOLDER, exist_ok=True)
    path.chmod(_FOLDER)  # the umask may have taken even the user's own rights


def create(path: Path) -> None:
    """See to it that a file is there, empty if it was not, for someone else (say SQLite) to fill.

    SQLite gives its journals the rights of the file that they belong to.
    """
    if not path.exists():
        os.close(_open(path, os.O_WRONLY | os.O_CREAT))


def write(path: Path, content: bytes | str, *, dated: bool = True) -> None:
    """Write a file in one step; one that is not `dated` bears `PUBLIC_TIME`.

    Guarantee: whenever this is cut off, `path` holds either what it held before or all of the new content; when it
    returns, that is on disk. No other user could ever read it.
    """
    part = path.with_name(path.name + PART)
    with open(_open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if not dated:
            undate(part)
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)


def closed_with(owner: object, connection: sqlite3.Connection) -> None:
    """Close an open connection when its owner is gone. At the process's end nothing is left to do."""
    weakref.finalize(owner, connection.close).atexit = False


def append(path: Path, text: str) -> None:
    """Add to a file."""
    with open(_open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "w", encoding="utf-8") as file:
        file.write(text)


def undate(path: Path) -> None:
    """Give a file or a folder `PUBLIC_TIME`."""
    os.utime(path, (PUBLIC_TIME, PUBLIC_TIME))


def close_to_others(folder_of_others: Path) -> None:
    """Take a folder and all in it, which a third party made, from everyone but the user."""
    for path in (folder_of_others, *folder_of_others.rglob("*")):
        path.chmod(_FOLDER if path.is_dir() else _FILE)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; nothing there is fine.

    The content has no name any more. The disk's blocks may hold it until they are used again: encrypt the disk.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync(path.parent)
    except OSError as error:
        raise DataError(
            f"{path} must not be kept, and cannot be removed ({error}): allow this user to, and do the same again"
        ) from error


def sync(place: Path) -> None:
    """Put on disk which files a folder holds."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_HELD: set[tuple[int, str]] = set()
"""The locks that `alone` holds, by process and file."""


@contextmanager
def alone(lock: Path, *, what: str) -> Iterator[None]:
    """Keep other processes, and other parts of this one, from work in a folder.

    The operating system lets go when this process ends; processes that it has started do not hold the lock.
    """
    import fcntl

    name = os.getpid(), os.path.realpath(lock)
    if name in _HELD:  # to open and close the file once more would let go of it
        remedy = f"this process {what} already: end that first"
        raise ConfigError(field="run", value=str(lock.parent), remedy=remedy)
    with open(_open(lock, os.O_RDWR | os.O_CREAT), "wb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = f"another process {what}: wait for it, or stop it"
            raise ConfigError(field="run", value=str(lock.parent), remedy=remedy) from error
        _HELD.add(name)
        try:
            yield
        finally:
            _HELD.discard(name)


def take(lock: Path, *, wait: bool = True) -> int | None:
    """A descriptor that holds this lock until it is closed; without waiting, None if another holder has it.

    The operating system closes it when the process ends. The file stays, because another process may wait for it.
    """
    import fcntl

    descriptor = _open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        if wait:
            raise
        return None
    return descriptor


class Turn:
    """One at a time: among threads and, where it has a lock file, among processes. The holder may take it again.

    Guarantee: a thread or process that enters waits until all others have left, or ended.
    """

    def __init__(self, lock: Path | None) -> None:
        self._lock = lock
        self._thread = RLock()
        self._depth = 0
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        self._thread.acquire()
        if self._depth == 0 and self._lock is not None:
            try:
                self._descriptor = take(self._lock)
            except OSError:
                self._thread.release()
                raise
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._thread.release()


def _open(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)
    os.fchmod(descriptor, _FILE)  # under any umask, also of an older file
    return descriptor
