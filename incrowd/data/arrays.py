"""Examples from what a user already has in memory: arrays, or a map-style torch data set."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd.data.examples import Examples, Labels
from incrowd.data.inputs import Inputs, named
from incrowd.errors import ConfigError, DataError

_MAP_STYLE = "give a map-style data set, or read it into arrays"


Classes = int | Sequence[Any] | None
"""How many classes there are, for labels 0, 1, ..; or the labels in order; or None, for labels that are numbers."""


class MapDataset(Protocol):
    """A map-style data set, torch's or another: a length, and pairs of features and a label."""

    def __len__(self) -> int:
        """The number of examples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """The pair at one index."""
        ...


def from_arrays(
    features: ArrayLike | Inputs,
    labels: ArrayLike,
    *,
    classes: Classes = None,
    scale: float | None = None,
    offset: float = 0.0,
) -> Examples:
    """Examples from arrays or lists of numbers, or from a dict or a tuple of them: several inputs of a model.

    Whole numbers of several bytes stay whole numbers (tokens, numbers of categories), unless a `scale` or an `offset`
    says that they are quantities. Other numbers are converted to float32, and truth values too, unless they are one of
    several inputs, where they are masks. `classes` are a number, for labels 0 .. classes - 1, or the labels in order.

    Bytes of pictures (uint8 of two dimensions or more) become 0 to 1 unless a `scale` is stated.

    Guarantee: contiguous uint8, float32 or int64 features and int64 labels (float32 without classes) are used as they
    are, without a copy.

    Edge cases: other bytes without a `scale`, what float32 cannot hold, a whole number that it would change, a label
    that is not a whole number where classes are stated, and anything but numbers is a `DataError`.
    """
    labels, classes = placed(labels, classes)
    quantities = scale not in (None, 1) or offset != 0
    if isinstance(features, dict):
        inputs: Inputs = {name: _input(f"features[{name!r}]", one) for name, one in features.items()}
    elif isinstance(features, tuple) and not _is_row(features):
        inputs = tuple(_input(f"features[{place}]", one) for place, one in enumerate(features))
    else:
        inputs = _as_features("features", _numbers("features", features), quantities=quantities)
    return Examples(
        features=inputs,
        labels=_as_labels(_numbers("labels", labels), classes),
        classes=classes,
        scale=_usual_scale(inputs) if scale is None else scale,
        offset=offset,
    )


def placed(labels: Any, classes: Classes) -> tuple[Any, int | None]:
    """Labels as places in `classes`, where these are named, and how many there are.

    Edge cases: a label that is none of the names, and words without names: `DataError`.
    """
    if classes is None or isinstance(classes, int | float):
        if _are_words(labels):
            raise DataError('labels are words: state them in order, say classes = ("no", "yes")')
        return labels, classes
    places = {name: place for place, name in enumerate(classes)}
    if len(places) != len(classes) or not places:
        raise ConfigError(field="classes", value=tuple(classes), remedy="give each label's name once")
    values = np.asarray(labels)
    for place, value in enumerate(values.ravel().tolist()):
        if value not in places:
            raise DataError(f"labels[{place}] = {value!r}: it is none of classes = {tuple(classes)}")
    found = [places[value] for value in values.ravel().tolist()]
    return np.array(found, np.int64).reshape(values.shape), len(places)


def _are_words(labels: Any) -> bool:
    try:
        values = np.asarray(labels)
    except (RuntimeError, TypeError, ValueError):  # rows of several lengths, a tensor with a gradient
        return False
    return values.dtype.kind in "OU" and any(isinstance(one, str) for one in values.ravel())


def from_dataset(
    dataset: MapDataset, *, classes: Classes = None, scale: float | None = None, offset: float = 0.0
) -> Examples:
    """Examples from a map-style data set that gives ``(features, label)``, read once into one array.

    Edge cases: a data set without a length or without indices (torch's IterableDataset), an item that is not a pair,
    or an item of another shape than the first: `DataError`.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{type(dataset).__name__} has no length or no indices: {_MAP_STYLE}")
    if len(dataset) == 0:
        raise DataError(f"{type(dataset).__name__} is empty: give at least one example")
    start, _ = _pair(dataset, 0)
    rows: dict[Any, list[Any]] = {key: [] for key in start}
    labels = []
    for row in range(len(dataset)):
        values, label = _pair(dataset, row)
        _check_like_the_first(row, values, start)
        for key, value in values.items():
            rows[key].append(value)
        labels.append(label)
    features: Inputs = {key: np.stack(several) for key, several in rows.items()}
    if _ONLY in features:
        features = features[_ONLY]
    elif all(isinstance(key, int) for key in features):
        features = tuple(features.values())
    return from_arrays(features, _together(labels), classes=classes, scale=scale, offset=offset)


_ONLY = object()  # the key of the only input


def _pair(dataset: MapDataset, row: int) -> tuple[dict[Any, NDArray[Any]], NDArray[Any] | str]:
    """The inputs and the label of an item."""
    try:
        item = dataset[row]
    except NotImplementedError as error:  # what torch's IterableDataset says
        raise DataError(f"{type(dataset).__name__} has no indices: {_MAP_STYLE}") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"item {row} is {type(item).__name__}: give pairs of features and a label")
    given, label = item[0], item[1] if isinstance(item[1], str) else _numbers(f"label of item {row}", item[1])
    inputs = {_ONLY: given}
    if isinstance(given, dict):
        inputs = given
    elif isinstance(given, tuple) and not _is_row(given):
        inputs = dict(enumerate(given))
    return {key: _numbers(f"features of item {row}", one) for key, one in inputs.items()}, label


def _check_like_the_first(row: int, values: dict[Any, NDArray[Any]], start: dict[Any, NDArray[Any]]) -> None:
    if values.keys() != start.keys():
        raise DataError(f"item {row} has other inputs than item 0: give every example the same ones")
    for key, value in values.items():
        if value.shape != start[key].shape or value.dtype != start[key].dtype:
            raise DataError(
                f"item {row} is {value.dtype} of shape {value.shape}, item 0 is {start[key].dtype} of shape "
                f"{start[key].shape}: give every example the same shape and type"
            )


def _together(labels: list[Any]) -> NDArray[Any]:
    """One array of all labels; a label in an array of its own is a number."""
    if any(isinstance(label, str) for label in labels):
        return np.array(labels, object)
    plain = [label.reshape(()) if label.size == 1 else label for label in labels]
    for row, label in enumerate(plain):
        if label.shape != plain[0].shape:
            raise DataError(
                f"item {row} has a label of shape {label.shape}, item 0 one of shape {plain[0].shape}: "
                "give one number for each example, or equally many"
            )
    return np.array(plain)


def _usual_scale(features: Inputs) -> float:
    """What a byte counts where no scale is stated: 1 / 255 in pictures. Edge cases: other bytes are a `DataError`."""
    stored = [one for one in named(features).values() if one.dtype == np.uint8]
    if any(one.ndim < 3 for one in stored):
        raise DataError(
            "features are uint8: state scale = 1/255 for bytes of pictures, which become 0 to 1, or scale = 1 for "
            "numbers as they are; or give float32"
        )
    return 1 / 255 if stored else 1.0


def _is_row(given: tuple[Any, ...]) -> bool:
    """Whether a tuple is a row of numbers, or of rows, and not several inputs."""
    return not any(hasattr(one, "dtype") for one in given)


def _input(name: str, values: Any) -> NDArray[Any]:
    array = _numbers(name, values)
    return np.ascontiguousarray(array) if array.dtype == np.bool_ else _as_features(name, array, quantities=False)


def _numbers(what: str, values: Any) -> NDArray[Any]:
    try:
        # A tensor may need a gradient or live on an accelerator; duck-typed, so that torch is not imported for it.
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} have no common shape: give every example the same one") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} are {array.dtype}: give numbers")
    return array


def _as_features(name: str, array: NDArray[Any], *, quantities: bool) -> NDArray[Any]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iu" and not quantities:
        return _whole(name, array)
    return _float32(name, array)


def _whole(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{name} hold {array.max()}: give whole numbers below 2^63")
    return np.ascontiguousarray(array, np.int64)


def _as_labels(array: NDArray[Any], classes: int | None) -> Labels:
    if classes is None:
        return _float32("labels", array)
    if array.dtype.kind == "f":
        exact = array.astype(np.float64)
        not_whole = np.argwhere(~((np.abs(exact) < 2**53) & (exact == np.rint(exact))))
        if not_whole.size:
            place = [int(i) for i in not_whole[0]]
            raise DataError(f"labels{place} = {array[tuple(place)]}: with classes = {classes} give whole numbers")
    return np.ascontiguousarray(array, np.int64)


def _float32(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # becomes an infinity, which Examples refuses by name
        floats = np.ascontiguousarray(array, np.float32)
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2 and not np.array_equal(floats.astype(array.dtype), array):
        place = [int(i) for i in np.argwhere(floats.astype(array.dtype) != array)[0]]
        value = array[tuple(place)]
        raise DataError(f"{name}{place} = {value}: float32 would change it; give a smaller number, or float64")
    return floats
