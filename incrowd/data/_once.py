"""Files that are read once, so that what is learned from and what is recognised cannot differ."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from incrowd.errors import DataError

_READ: ContextVar[dict[Path, bytes] | None] = ContextVar("files that are read once", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Read every file once meanwhile.

    Guarantee: what is learned from and what is recognised are the same bytes, whatever becomes of the file, or of a
    link on the way to it, between the two.
    """
    if _READ.get() is not None:
        yield
        return
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def content(path: Path, *, unpacked: Callable[[bytes], bytes] = bytes) -> bytes:
    """The bytes of a file, `unpacked`. Edge cases: what is no regular file could be another one every time: a
    `DataError`.
    """
    seen = _READ.get()
    if seen is not None and path in seen:
        return seen[path]
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # reading a folder is an error already
            raise DataError(f"{path}: is no regular file, and would be read twice; copy it into one")
        stored = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
    found = unpacked(stored)
    if seen is not None:
        seen[path] = found
    return found
