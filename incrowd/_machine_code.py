"""Loops that numba compiles, for the rooms that do without numba as well."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from incrowd._private import check_ours, compiled_code
from incrowd.errors import ConfigError

WORTH = 2**22
"""Loading numba takes as long as plain code takes for about so many values."""

_BROKEN = (ImportError, AttributeError, OSError, RuntimeError, SystemError)
"""The errors of a numba that does not fit other packages, or whose files are damaged."""

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Machine code, kept on disk if there is a folder for it. No operation is reordered or fused."""
    import numba

    compile_: Any = numba.njit
    settings = {"error_model": "numpy", "nogil": True}
    try:
        loop: _Function = kept_privately(partial(compile_, function, cache=True, **settings))
    except RuntimeError:  # there is no folder that can be written to
        loop = compile_(function, **settings)
    whatever_the_disk_says(loop)
    return loop


def kept_privately(make: Callable[[], Any]) -> Any:
    """A loop as `make` makes it. Its machine code is loaded only from a folder of this user: if need be, from
    `incrowd._private.compiled_code`.
    """
    import numba

    loop = make()
    if _is_private(loop):
        return loop
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(compiled_code("numba"))
    try:
        return make()
    finally:
        settings.CACHE_DIR = before


def _is_private(loop: Any) -> bool:
    """Whether only this user can write the loop's cache; a cache beside the source has the source's owner."""
    folder = getattr(getattr(loop, "_cache", None), "cache_path", None)
    if folder is None or not hasattr(os, "geteuid"):
        return True
    source = Path(loop.py_func.__code__.co_filename).parent
    if Path(folder) == source / "__pycache__":
        kept, code = Path(folder).lstat(), source.stat()
        ours = kept.st_uid in (0, os.geteuid(), code.st_uid) and stat.S_ISDIR(kept.st_mode)
        return ours and not kept.st_mode & ~code.st_mode & 0o022
    try:
        check_ours(folder)
    except ConfigError:
        return False
    return True


def whatever_the_disk_says(loop: Any) -> None:
    """Make a loop anew, and keep nothing, if its cache cannot be read or written: its noise is paid for already.

    A file that a crash cut short, and a disk that is full, would otherwise end a run in the middle of a release.
    """
    with contextlib.suppress(AttributeError):  # nothing is kept of it
        loop._cache._guard_against_spurious_io_errors = partial(contextlib.suppress, Exception)


class LoopsOrPlain:
    """A module of compiled loops and a plain one that does the same: the better of the two is used.

    Guarantee: numba is loaded only when the plain code has had `WORTH` values to work on; without numba, or with one
    that fails when it is loaded, it has them all.
    """

    def __init__(self, name: str, *, plain: Any) -> None:
        self._name = name
        self._work = plain
        self._left: float = WORTH

    def best(self, values: int) -> Any:
        """The module to work on so many values with."""
        if self._left > 0:
            self._left -= values
            if self._left <= 0:
                self._load()
        return self._work

    def _load(self) -> None:
        try:
            self._work = import_module(self._name)
        except _BROKEN:  # plain code does the same, and what waits for it may be paid for
            sys.modules.pop(self._name, None)
