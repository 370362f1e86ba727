"""Apply a feature map to examples: once, in chunks, on all cores."""

import hashlib
import hmac
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from incrowd import _files
from incrowd.data.clients import Clients
from incrowd.data.examples import Examples, Features, single
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features.feature_map import CallableMap, ModuleMap, Values
from incrowd.learning.features.pieces import takes_tokens
from incrowd.learning.modules import refused, remembered
from incrowd.privacy.ledger.registry import Registry
from incrowd.types import FeatureMap

_CHUNK = 32  # examples at a time: measured, what a chunk of images needs stays in a core's cache
_TOLERANCE = 1e-3  # far above the rounding of float32, far below what another example would change


def transform(
    feature_map: FeatureMap, examples: Examples, *, cache: Path | str | None = None, alone: bool = True
) -> Examples:
    """The same examples with their features [n, d] in place of what they were; see `FeatureMap`.

    With `cache`, a folder, features are kept in a file that only the user may read.

    Guarantee: an example's features have the same bits whatever others there are, unless `alone` is false, which is
    four times faster and for public data. A map whose features change with the examples around, or that remembers what
    it was called with, is refused.
    """
    _check_type(feature_map, single(examples.features).dtype)
    path = None if cache is None else cache_file(Path(cache), feature_map, examples, alone=alone)
    features = _kept(path, lambda: evaluate(feature_map, examples.values, len(examples), chunk=1 if alone else _CHUNK))
    return Examples(features=features, labels=examples.labels, classes=examples.classes)


def transform_federated(
    feature_map: FeatureMap, data: Clients, *, cache: Path | str | None = None, alone: bool = True
) -> Clients:
    """The same clients with features in place of their examples, and the server's test examples likewise."""
    test = None if data.test is None else transform(feature_map, data.test, cache=cache, alone=alone)
    return replace(data, examples=transform(feature_map, data.examples, cache=cache, alone=alone), test=test)


def evaluate(feature_map: FeatureMap, source: Callable[[slice], Values], count: int, *, chunk: int) -> Values:
    """Features [count, d] of what `source` gives for slices of `chunk` examples."""
    first = source(slice(0, min(max(chunk, _CHUNK), count)))
    start = _applied(feature_map, first)  # here, so that a map that prepares itself does so once
    _check_alone(feature_map, first, start)
    own = list(_own(feature_map))
    before = remembered(own)  # after the first call, so that what is loaded once may be
    features = np.empty((count, start.shape[1]), np.float32)

    def work(begin: int) -> None:
        rows = slice(begin, min(begin + chunk, count))
        features[rows] = _applied(feature_map, source(rows))

    with ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in pool.map(work, range(0, count, chunk)):
            pass
    if remembered(own) != before:
        raise refused("feature_map", feature_map.name)
    return features


def _own(feature_map: object) -> Iterator[object]:
    """The user's functions and modules in a map, and in the maps that it consists of."""
    if isinstance(feature_map, CallableMap | ModuleMap):
        yield vars(feature_map)
    elif is_dataclass(feature_map):
        for value in vars(feature_map).values():
            for one in value if isinstance(value, tuple) else (value,):
                yield from _own(one)


def _check_type(feature_map: FeatureMap, given: np.dtype[Any]) -> None:
    if takes_tokens(feature_map) and given != np.int64:
        raise DataError(f"features are {given}: pieces of sequences are of tokens, give int64")
    if not takes_tokens(feature_map) and given not in (np.uint8, np.float32):
        raise DataError(f"features are {given}: such feature maps are for numbers, give float32")


def _applied(feature_map: FeatureMap, values: Values) -> Values:
    features = feature_map(values)
    if features.ndim != 2 or len(features) != len(values) or features.shape[1] == 0:
        raise DataError(
            f"the feature map {feature_map.name} gives the shape {features.shape} for {len(values)} examples: "
            f"end with a map that gives ({len(values)}, number of features), such as UnitNorm()"
        )
    if not (np.isfinite(features.min()) and np.isfinite(features.max())):
        raise DataError(f"the feature map {feature_map.name} gives numbers that are not finite: repair the map")
    return features


def _check_alone(feature_map: FeatureMap, values: Values, features: Values) -> None:
    alone = _applied(feature_map, values[:1])[0]
    if np.abs(alone - features[0]).max() > _TOLERANCE * max(np.abs(alone).max(), np.abs(features[0]).max()):
        remedy = (
            "an example's features change with the examples around it or from call to call; give a map that computes "
            "each example's features from that example alone"
        )
        raise ConfigError(field="feature_map", value=feature_map.name, remedy=remedy)


_REVISION = 10  # a built-in map that computes something else under the same name needs the next
_SEAL = 32  # bytes
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK  # and no pipe that has to be waited for


def cache_file(folder: Path, feature_map: FeatureMap, examples: Examples, *, alone: bool) -> Path:
    """The file for these examples' features. Its name is keyed: a plain hash would confirm a guess of an example."""
    data = checksum(examples.features).hex()
    return named(folder, json.dumps([feature_map.name, data, examples.scale, examples.offset, alone]))


def learnt(folder: Path | None, key: str, learn: Callable[[], Values]) -> Values:
    """Numbers learnt from made-up examples, and kept in a folder, if possible, under this key."""
    try:
        path = None if folder is None else named(folder, key)
    except OSError:  # there is no key, and no place for one
        path = None
    return _kept(path, learn, must=False)


def _kept(path: Path | None, make: Callable[[], Values], *, must: bool = True) -> Values:
    """What this file holds, or what is made and written there; an error of the disk is one if that `must` be."""
    found = None if path is None else load_features(path)
    if found is None:
        found = make()
        if path is not None:
            with suppress(*(() if must else (DataError,))):
                save_features(path, found)
    return found


def named(folder: Path, key: str) -> Path:
    """The file for what this key says."""
    name = hmac.digest(Registry.of_user().key(), f"features:{_REVISION} {key}".encode(), "sha256").hex()
    return folder / f"features-{name[:40]}.npy"


def load_features(path: Path) -> Values | None:
    """The array that `save_features` wrote under this name, or None if the file is absent, cut off or changed.

    Guarantee: even in a folder that others write to, the array is one that this user has saved for the same map and
    examples. Another file in its place would show other people's examples to a run whose ledger does not know them.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_LINK)) as stream:
            features: Values = np.lib.format.read_array(stream, allow_pickle=False)
            seal = stream.read(_SEAL + 1)
    except (OSError, ValueError, MemoryError, OverflowError):  # absent, cut off, or a header that asks for anything
        return None
    if features.dtype != np.float32 or not hmac.compare_digest(seal, _seal(path, features)):
        return None
    return features


def save_features(path: Path, features: Values) -> None:
    """Write the array as NumPy reads it, then its seal, in one step, for the user alone."""
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
    """A message authentication code of the array and its name, by the user's key: see `cache_file`."""
    sealed = f"sealed features: {path.name} ".encode() + checksum(features)
    return hmac.digest(Registry.of_user().key(), sealed, "sha256")


def checksum(array: Features) -> bytes:
    """SHA-256 over type, shape and contents."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
