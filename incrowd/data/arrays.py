"""Examples from what a user already has in memory: arrays, or a map-style torch data set."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd.data.examples import Examples, Features, Labels
from incrowd.errors import DataError

_MAP_STYLE = "give a map-style data set, or read it into arrays"


class MapDataset(Protocol):
    """A map-style data set, torch's or another: a length, and pairs of features and a label."""

    def __len__(self) -> int:
        """The number of examples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """The pair at one index."""
        ...


def from_arrays(
    features: ArrayLike, labels: ArrayLike, *, classes: int | None = None, scale: float = 1.0, offset: float = 0.0
) -> Examples:
    """Examples from arrays or lists of numbers.

    Guarantee: contiguous uint8 or float32 features and int64 labels (float32 without classes) are used as they are,
    without a copy.

    Edge cases: other numbers are converted to these types; what float32 cannot hold, a label that is not a whole
    number where classes are stated, and anything but numbers is a `DataError`.
    """
    return Examples(
        features=_as_features(_numbers("features", features)),
        labels=_as_labels(_numbers("labels", labels), classes),
        classes=classes,
        scale=scale,
        offset=offset,
    )


def from_dataset(
    dataset: MapDataset, *, classes: int | None = None, scale: float = 1.0, offset: float = 0.0
) -> Examples:
    """Examples from a map-style data set that gives ``(features, label)``, read once into one array.

    Edge cases: a data set without a length or without indices (torch's IterableDataset), an item that is not a pair,
    or an item of another shape than the first: `DataError`.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{type(dataset).__name__} has no length or no indices: {_MAP_STYLE}")
    if len(dataset) == 0:
        raise DataError(f"{type(dataset).__name__} is empty: give at least one example")
    first, _ = _pair(dataset, 0)
    features = np.empty((len(dataset), *first.shape), first.dtype)
    labels = []
    for row in range(len(dataset)):
        value, label = _pair(dataset, row)
        if value.shape != first.shape or value.dtype != first.dtype:
            raise DataError(
                f"item {row} is {value.dtype} of shape {value.shape}, item 0 is {first.dtype} of shape {first.shape}: "
                "give every example the same shape and type"
            )
        features[row] = value
        labels.append(label)
    return from_arrays(features, np.array(labels), classes=classes, scale=scale, offset=offset)


def _pair(dataset: MapDataset, row: int) -> tuple[NDArray[Any], Any]:
    try:
        item = dataset[row]
    except NotImplementedError as error:  # what torch's IterableDataset says
        raise DataError(f"{type(dataset).__name__} has no indices: {_MAP_STYLE}") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"item {row} is {type(item).__name__}: give pairs of features and a label")
    features, label = _numbers(f"features of item {row}", item[0]), _numbers(f"label of item {row}", item[1])
    if label.size != 1:
        raise DataError(f"item {row} has a label of shape {label.shape}: give one number for each example")
    return features, label.item()


def _numbers(what: str, values: Any) -> NDArray[Any]:
    try:
        # A tensor may need a gradient or live on an accelerator; duck-typed, so that torch is not imported for it.
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} have no common shape: give every example the same one") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} are {array.dtype}: give numbers")
    return array


def _as_features(array: NDArray[Any]) -> Features:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    return _float32(array)


def _as_labels(array: NDArray[Any], classes: int | None) -> Labels:
    if classes is None:
        return _float32(array)
    if array.dtype.kind == "f":
        exact = array.astype(np.float64)
        not_whole = np.flatnonzero(~((np.abs(exact) < 2**53) & (exact == np.rint(exact))))
        if not_whole.size:
            row = not_whole[0]
            raise DataError(f"labels[{row}] = {array.ravel()[row]}: with classes = {classes} give whole numbers")
    return np.ascontiguousarray(array, np.int64)


def _float32(array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # becomes an infinity, which Examples refuses by name
        return np.ascontiguousarray(array, np.float32)
