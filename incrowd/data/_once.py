"""What is read once, so that what is learned from and what is recognised cannot differ."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from incrowd.errors import DataError

_READ: ContextVar[dict[Hashable, Any] | None] = ContextVar("what is read once", default=None)

Read = TypeVar("Read")


@contextmanager
def read_once() -> Iterator[None]:
    """Read every file, and all that is looked for as one, once meanwhile.

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


def once(key: Hashable, read: Callable[[], Read]) -> Read:
    """What `read` gives, the first time that this key is asked for."""
    seen = _READ.get()
    if seen is None:
        return read()
    if key not in seen:
        seen[key] = read()
    found: Read = seen[key]
    return found


def content(path: Path) -> bytes:
    """The bytes of a file. Edge cases: what is no regular file could be another one every time: a `DataError`."""
    return once(path, lambda: _content(path))


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is no regular file, and would be read twice; copy it into one")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
