"""Features on disk: one file for each pair of a map and examples, whole and checked, or not there."""

import hashlib
import hmac
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from incrowd import _files
from incrowd.data import Examples
from incrowd.data.examples import Features
from incrowd.errors import DataError
from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.privacy.ledger.state import key_in, state_folder

_REVISION = 3  # a built-in map that computes something else under the same name needs the next


def place(folder: Path, feature_map: FeatureMap, examples: Examples, *, alone: bool) -> Path:
    """The file for the features of these examples; labels do not matter.

    Others may see its name, where the folder is open to them. So the name is keyed: a plain hash would confirm a guess,
    and who knows all examples but one could try out what that one is.
    """
    data = checksum(examples.features).hex()
    return named(folder, json.dumps([feature_map.name, data, examples.scale, examples.offset, alone]))


def named(folder: Path, key: str) -> Path:
    """The file for what this key says."""
    name = hmac.digest(key_in(state_folder()), f"features:{_REVISION} {key}".encode(), "sha256").hex()
    return folder / f"features-{name[:40]}.npy"


def load(path: Path) -> Values | None:
    """What `save` wrote, or None if there is no such file or anything about it is wrong."""
    try:
        with path.open("rb") as stream:
            features: Values = np.lib.format.read_array(stream, allow_pickle=False)
            expected = stream.read()
    except (OSError, ValueError, MemoryError):  # absent, cut off, or a damaged header that asks for anything
        return None
    if features.dtype != np.float32 or checksum(features) != expected:
        return None
    return features


def save(path: Path, features: Values) -> None:
    """Write the array as NumPy reads it, with its checksum after it, in one step.

    Only the user may read the file: features are as private as the examples.
    """
    try:
        _files.folder(path.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=path.stem, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                np.lib.format.write_array(stream, features, allow_pickle=False)
                stream.write(checksum(features))
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); give another cache folder, or none") from error


def checksum(array: Features) -> bytes:
    """SHA-256 over type, shape and contents."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
