"""Files that are there in full, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incrowd.errors import ConfigError

PART = ".part"
"""What the name of a file ends in that was not finished."""


def write(path: Path, content: bytes | str) -> None:
    """Write a file in one step.

    Guarantee: whenever this is cut off, `path` holds either what it held before or all of the new content; when it
    returns, that is on disk.
    """
    part = path.with_name(path.name + PART)
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def alone(lock: Path, *, what: str) -> Iterator[None]:
    """Keep other processes from what this one does in a folder.

    The operating system lets go when this process ends; processes that it has started do not hold the lock.
    """
    import fcntl

    with lock.open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = f"another process {what}: wait for it, or stop it"
            raise ConfigError(field="run", value=str(lock.parent), remedy=remedy) from error
        yield
