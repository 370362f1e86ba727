"""Examples from arrays, tensors, frames of numbers, and map-style data sets."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd.data.examples import Examples, Inputs, Labels, each, is_single, named
from incrowd.errors import ConfigError, DataError

Classes = int | Sequence[Any] | None
"""The number of classes, for labels 0, 1, ..; or the labels in order; or None, for numeric labels."""


def from_arrays(
    features: ArrayLike | Inputs,
    labels: ArrayLike,
    *,
    classes: Classes = None,
    scale: float | None = None,
    offset: float = 0.0,
) -> Examples:
    """Examples from arrays or lists of numbers, or from a dict or a tuple of these: several inputs of a model.

    Integers of several bytes stay integers, such as tokens, unless a `scale` or an `offset` makes them quantities.
    Other numbers become float32, and so do booleans; as one of several inputs booleans stay masks. Bytes of pictures
    (uint8 of two or more dimensions) have the scale 1 / 255 by default.

    Guarantee: contiguous uint8, float32 or int64 features and labels of the final type are not copied.

    Edge cases: other bytes without a `scale`, a number that float32 changes, a label outside `classes`, and anything
    but numbers: `DataError`.
    """
    labels, classes = placed(labels, classes)
    several = isinstance(features, dict) or (isinstance(features, tuple) and not _is_row(features))
    quantities = not several and (scale not in (None, 1) or offset != 0)
    arrays = named(features) if several else {"features": features}
    made = [
        _as_features(name, _numbers(name, one), quantities=quantities, masks=several) for name, one in arrays.items()
    ]
    inputs: Inputs = tuple(made) if several else made[0]
    if isinstance(features, dict):
        inputs = dict(zip(features, made, strict=True))
    return Examples(
        features=inputs,
        labels=_as_labels(_numbers("labels", labels), classes),
        classes=classes,
        scale=_usual_scale(inputs) if scale is None else scale,
        offset=offset,
    )


def placed(labels: Any, classes: Classes) -> tuple[Any, int | None]:
    """Labels as places in `classes`, if these are names, and the number of classes.

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
    dataset: Any,
    *,
    classes: Classes = None,
    features: str | Sequence[str] = (),
    label: str = "label",
) -> Examples:
    """Examples from a map-style data set of pairs ``(features, label)``, or of dicts with these keys.

    Edge cases: a data set without a length or indices, an item of another form, and an item that differs from the first
    in shape or type: `DataError`.
    """
    kind = type(dataset).__name__
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{kind} has no length or no indices: {_MAP_STYLE}")
    if len(dataset) == 0:
        raise DataError(f"{kind} is empty: give at least one example")
    inputs, labels = list[Inputs](), list[Any]()
    for row in range(len(dataset)):
        try:
            item = dataset[row]
        except NotImplementedError as error:  # torch's IterableDataset
            raise DataError(f"{kind} has no indices: {_MAP_STYLE}") from error
        if isinstance(item, Mapping):
            item = _of_dict(row, item, features, label)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {row} is {type(item).__name__}: give pairs of features and a label")
        what = f"features of item {row}"
        several = isinstance(item[0], dict) or (isinstance(item[0], tuple) and not _is_row(item[0]))
        inputs.append(each(partial(_numbers, what), item[0]) if several else _numbers(what, item[0]))
        labels.append(item[1] if isinstance(item[1], str) else _numbers(f"label of item {row}", item[1]))
        if named(inputs[-1]).keys() != named(inputs[0]).keys():
            raise DataError(f"item {row} has other inputs than item 0: give every example the same ones")
    stacked = inputs[0]
    if is_single(stacked):
        stacked = _stacked("features", inputs)
    elif isinstance(stacked, dict):
        stacked = {name: _stacked("features", [one[name] for one in inputs]) for name in stacked}
    else:
        stacked = tuple(_stacked("features", place) for place in zip(*inputs, strict=True))
    words = any(isinstance(one, str) for one in labels)
    answers = np.array(labels, object) if words else _stacked("a label", [np.squeeze(one) for one in labels])
    return from_arrays(stacked, answers, classes=classes)


_MAP_STYLE = "give a map-style data set, or read it into arrays"


def _of_dict(row: int, item: Mapping[str, Any], features: str | Sequence[str], label: str) -> tuple[Any, Any]:
    keys = [features] if isinstance(features, str) else list(features)
    missing = [key for key in (*keys, label) if key not in item]
    if missing or not keys:
        remedy = f"name features and label among its keys, {', '.join(map(str, item))}"
        raise DataError(
            f"item {row} has no key {missing[0]!r}: {remedy}" if missing else f"item {row} is a dict: {remedy}"
        )
    values = {key: item[key] for key in keys}
    if isinstance(features, str):
        return item[features], item[label]
    scalar = all(np.ndim(value) == 0 for value in values.values())
    return (np.array(list(values.values())) if scalar else values), item[label]


def _stacked(name: str, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    for row, value in enumerate(values):
        if value.shape != values[0].shape or (value.dtype != values[0].dtype and name == "features"):
            forms = [f"{name} of type {one.dtype} and shape {one.shape}" for one in (value, values[0])]
            problem = f"item {row} has {forms[0]}, item 0 has {forms[1]}"
            raise DataError(f"{problem}: give every example the same shape and type")
    return np.stack(values)


def _usual_scale(features: Inputs) -> float:
    """1 / 255 for bytes of pictures. Edge cases: other bytes without a stated scale are a `DataError`."""
    stored = [one for one in named(features).values() if one.dtype == np.uint8]
    if any(one.ndim < 3 for one in stored):
        raise DataError(
            "features are uint8: state scale = 1/255 for bytes of pictures, which become 0 to 1, or scale = 1 for "
            "numbers as they are; or give float32"
        )
    return 1 / 255 if stored else 1.0


def _is_row(values: tuple[Any, ...]) -> bool:
    """Whether a tuple is a row of numbers, not several inputs."""
    return not any(hasattr(one, "dtype") for one in values)


def _numbers(name: str, values: Any) -> NDArray[Any]:
    try:
        # A tensor may need a gradient or live on an accelerator; torch is not imported for the test.
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} have no common shape: give every example the same one") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} are {array.dtype}: give numbers")
    return array


def _as_features(name: str, array: NDArray[Any], *, quantities: bool, masks: bool) -> NDArray[Any]:
    if array.dtype == np.uint8 or (masks and array.dtype == np.bool_):
        return np.ascontiguousarray(array)
    if array.dtype.kind not in "iu" or quantities:
        return _float32(name, array)
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
    with np.errstate(over="ignore"):  # an overflow becomes an infinity, which Examples refuses by name
        floats = np.ascontiguousarray(array, np.float32)
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2 and not np.array_equal(floats.astype(array.dtype), array):
        place = [int(i) for i in np.argwhere(floats.astype(array.dtype) != array)[0]]
        value = array[tuple(place)]
        raise DataError(f"{name}{place} = {value}: float32 would change it; give a smaller number, or float64")
    return floats
