"""Apply a feature map to examples: once, in chunks, on all cores."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from incrowd.data import Clients, Examples
from incrowd.data.examples import single
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features import cache as disk
from incrowd.learning.features.feature_map import CallableMap, ModuleMap, Values
from incrowd.learning.features.pieces import takes_tokens
from incrowd.learning.isolation import refused, remembered
from incrowd.types import FeatureMap

_CHUNK = 32  # examples at a time: measured, what a chunk of images needs stays in a core's cache
_TOLERANCE = 1e-3  # far above the rounding of float32, far below what another example would change


def transform(
    feature_map: FeatureMap, examples: Examples, *, cache: Path | str | None = None, alone: bool = True
) -> Examples:
    """The same examples with their features [n, d] in place of what they were.

    Each client does this with its own examples, and it costs no privacy: see `FeatureMap`. With `cache`, a folder,
    features are kept in a file that only the user may read, known by the name of the map and a checksum of the
    examples. As many threads work as torch would use (`torch.set_num_threads`).

    Guarantee: an example's features have the same bits whatever others there are, unless `alone` is false, which is
    four times faster and for public data. A cached file that was cut off or changed is computed anew.

    Edge cases: a map whose features of the first example change with the examples around it, or from call to call, and
    one that remembers what it was called with, are a `ConfigError`; one that gives the wrong number of rows, no numbers
    for a row, or what is not finite, a `DataError`.
    """
    _check_type(feature_map, single(examples.features).dtype)
    path = None if cache is None else disk.place(Path(cache), feature_map, examples, alone=alone)
    features = None if path is None else disk.load(path)
    if features is None:
        features = evaluate(feature_map, examples.values, len(examples), chunk=1 if alone else _CHUNK)
        if path is not None:
            disk.save(path, features)
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
    if takes_tokens(feature_map):
        if given != np.int64:
            raise DataError(f"features are {given}: pieces of sequences are of tokens, give int64")
    elif given not in (np.uint8, np.float32):
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
        raise ConfigError(
            field="feature_map",
            value=feature_map.name,
            remedy="an example's features change with the examples around it or from call to call; give a map that "
            "computes each example's features from that example alone",
        )
