"""Features on disk: one file for each pair of a map and examples, whole, sealed and checked, or not there."""

import hashlib
import hmac
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from incrowd import _files
from incrowd.data import Examples
from incrowd.data.examples import Features
from incrowd.errors import DataError
from incrowd.learning.features.feature_map import Values
from incrowd.privacy.ledger.registry import Registry
from incrowd.types import FeatureMap

_REVISION = 10  # a built-in map that computes something else under the same name needs the next
_SEAL = 32  # bytes


def place(folder: Path, feature_map: FeatureMap, examples: Examples, *, alone: bool) -> Path:
    """The file for the features of these examples; labels do not matter.

    Others may see the name, where the folder is open to them. So it is keyed: a plain hash would confirm a guess of
    the one example that an attacker does not know.
    """
    data = checksum(examples.features).hex()
    return named(folder, json.dumps([feature_map.name, data, examples.scale, examples.offset, alone]))


def learnt(folder: Path | None, key: str, learn: Callable[[], Values]) -> Values:
    """Numbers learnt from made-up examples, read from the file for this key in a folder, or learnt and kept there.

    Edge cases: without a folder, and where nothing can be written, it is learnt anew each time.
    """
    try:
        path = None if folder is None else named(folder, key)
    except OSError:  # there is no key, and no place for one
        path = None
    found = None if path is None else load(path)
    if found is None:
        found = learn()
        if path is not None:
            with suppress(DataError):
                save(path, found)
    return found


def named(folder: Path, key: str) -> Path:
    """The file for what this key says."""
    name = hmac.digest(Registry.of_user().key(), f"features:{_REVISION} {key}".encode(), "sha256").hex()
    return folder / f"features-{name[:40]}.npy"


def load(path: Path) -> Values | None:
    """The array that `save` wrote under this name, or None if the file is absent, cut off or changed.

    Guarantee: even in a folder that others write to, the array is one that this user has saved for the same map and
    examples. Another file in its place would show other people's examples to a run whose ledger does not know them.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            features: Values = np.lib.format.read_array(stream, allow_pickle=False)
            seal = stream.read(_SEAL + 1)
    except (OSError, ValueError, MemoryError, OverflowError):  # absent, cut off, or a header that asks for anything
        return None
    if features.dtype != np.float32 or not hmac.compare_digest(seal, _seal(path, features)):
        return None
    return features


def save(path: Path, features: Values) -> None:
    """Write the array as NumPy reads it, with its seal after it, in one step.

    Only the user may read the file: features are as private as the examples.
    """
    try:
        _files.folder(path.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=path.stem, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                np.lib.format.write_array(stream, features, allow_pickle=False)
                stream.write(_seal(path, features))
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); give another cache folder, or none") from error


def _seal(path: Path, features: Values) -> bytes:
    """A message authentication code of the array and its name, by the user's key: see `place`."""
    sealed = f"sealed features: {path.name} ".encode() + checksum(features)
    return hmac.digest(Registry.of_user().key(), sealed, "sha256")


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting, as a pipe would; a link is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def checksum(array: Features) -> bytes:
    """SHA-256 over type, shape and contents."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
