"""Machine code that numba makes of loops, kept on disk for as long as their source stays the same."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from incrowd._machine_code import kept_privately, whatever_the_disk_says
from incrowd._random import Floats

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


@kept(__file__)
def add_squares(gradients: NDArray[np.float32], squares: Floats) -> None:
    """Add the squared norm of each row, in float64 and in one pass over memory, to its number."""
    for row in range(gradients.shape[0]):
        square = 0.0
        for column in range(gradients.shape[1]):
            value = np.float64(gradients[row, column])
            square += value * value
        squares[row] += square
