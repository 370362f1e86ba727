"""Machine code that numba makes of loops, kept on disk for as long as their source stays the same."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from incrowd._private import check_ours, compiled_code
from incrowd._random import Floats
from incrowd.errors import ConfigError

SETTINGS = {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy"}
"""Sums may be reordered, but NaN stays NaN."""

Loop = TypeVar("Loop", bound=Callable[..., object])


def digest_of(folder: Path) -> str:
    """The digest of the source code in a folder."""
    texts = (hashlib.sha256(file.read_bytes()).digest() for file in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def stamp_of(file: str) -> str:
    """Machine code from a file is good as long as this holds: a loop may use functions of all its folder."""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return own + digest_of(Path(file).parent)


def kept(file: str) -> Callable[[Loop], Loop]:
    """Makes machine code of a function that Python calls, kept on disk if there is a folder for it."""
    sources = stamp_of(file)

    def compiled(function: Loop) -> Loop:
        compile_: Any = numba.njit
        try:
            loop: Any = kept_privately(partial(compile_, function, cache=True, **SETTINGS))
            index = loop._cache._cache_file  # this is how numba 0.60 to 0.68 look inside; others keep nothing
            index._source_stamp = sources  # in place of the one file's size and time
            _forget_unreadable(index)
            whatever_the_disk_says(loop)
        except (AttributeError, RuntimeError):  # or no folder is writable
            loop = compile_(function, **SETTINGS)
        found: Loop = loop
        return found

    return compiled


def _forget_unreadable(file: Any) -> None:
    """Drop an index that names classes of another release, which numba could not load when it is called."""
    try:
        file._load_index()
    except (AttributeError, EOFError, ImportError, KeyError, UnpicklingError, ValueError):
        file.flush()


def kept_privately(make: Callable[[], Any]) -> Any:
    """A loop whose machine code is only loaded from a folder of this user, else from `compiled_code`."""
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
    """Make a loop anew, and keep nothing, if its cache cannot be read or written: its result may be paid for already.

    A file that a crash cut short, and a disk that is full, would otherwise end a run in the middle of a round.
    """
    with contextlib.suppress(AttributeError):  # nothing is kept of it
        loop._cache._guard_against_spurious_io_errors = partial(contextlib.suppress, Exception)


@kept(__file__)
def add_squares(gradients: NDArray[np.float32], squares: Floats) -> None:
    """Add the squared norm of each row, in float64 and in one pass over memory, to its number."""
    for row in range(gradients.shape[0]):
        square = 0.0
        for column in range(gradients.shape[1]):
            value = np.float64(gradients[row, column])
            square += value * value
        squares[row] += square
