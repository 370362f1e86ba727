"""Examples: features and labels as shared arrays, checked once; from arrays, tensors, frames and map-style data sets.

Features are one input of a model, or several.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch

Inputs = Any  # an array or a tensor, or a dict or a tuple of these
Classes = int | Sequence[Any] | None
"""The number of classes, for labels 0, 1, ..; or the labels in order; or None, for numeric labels."""


def is_single(inputs: Inputs) -> bool:
    """Whether there is one input."""
    return not isinstance(inputs, dict | tuple)


def named(inputs: Inputs) -> dict[str, Any]:
    """The inputs under their names in errors."""
    if is_single(inputs):
        return {"features": inputs}
    places = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return {f"features[{place!r}]": one for place, one in places}


def each(act: Callable[[Any], Any], inputs: Inputs) -> Inputs:
    """The result of a function for each input, in the same form."""
    if isinstance(inputs, dict):
        return {name: act(one) for name, one in inputs.items()}
    return tuple(map(act, inputs)) if isinstance(inputs, tuple) else act(inputs)


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Inputs of the same form, one after the other."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(place) for place in zip(*parts, strict=True))
    return np.concatenate(parts)


def first(inputs: Inputs) -> Any:
    """The first input; its length is the number of examples."""
    return next(iter(named(inputs).values()))


def single(inputs: Inputs) -> Any:
    """The only input."""
    if not is_single(inputs):
        raise DataError(f"there are several inputs ({', '.join(named(inputs))}): this needs one array, [examples, ...]")
    return inputs


def form(inputs: Inputs) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """The public facts about inputs: the name, the shape of an example and the type of each."""
    return tuple((name, tuple(one.shape[1:]), str(one.dtype)) for name, one in named(inputs).items())


def shared_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """A CPU tensor over the memory of an array. Do not write to it."""
    import torch

    with warnings.catch_warnings():
        # Read-only arrays, such as memory maps, are fine: incrowd never writes to shared data.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


Features = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64] | NDArray[np.float32]

IGNORED = -100
"""The label of a place in a sequence that does not count, as in torch."""

_TYPES = (np.uint8, np.float32, np.int64, np.bool_)
_CONVERTS = "or use from_arrays, which converts"


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """N features and their N labels. The value of a feature is ``features * scale + offset``.

    Features are one array, or a dict or a tuple of arrays. Numbers are uint8 or float32. Tokens (int64) and masks
    (bool) have no scale. Of several inputs only those of type uint8 are scaled.

    `scale`, `offset` and `classes` are public, and never computed from the data. With `classes`, labels are int64 from
    0 to classes - 1, one for each example [N] or for each place of a sequence [N, T], with `IGNORED` places. Without,
    labels are float32, one [N] or several [N, L] for each example: regression, or 0 and 1 for several labels.

    Guarantee: the arrays are not copied; features and labels are finite, and labels in range. The repr shows no data.
    """

    features: Inputs = field(repr=False)
    labels: Labels = field(repr=False)
    classes: int | None = None
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        _validate.number(scale=self.scale, offset=self.offset)
        if self.scale == 0:
            remedy = "give a number other than 0, or every feature is the same"
            raise ConfigError(field="scale", value=self.scale, remedy=remedy)
        if self.classes is not None:
            _validate.count(classes=self.classes)
        _check_inputs(self.features, self.scale, self.offset)
        features = first(self.features)
        if self.labels.ndim == 0 or len(self.labels) != len(features) or {0, 1} & set(self.labels.shape[1:]):
            shapes = f"labels have the shape {self.labels.shape} and features {features.shape}"
            raise DataError(f"{shapes}: give one label for each example")
        _check_labels(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one feature."""
        return tuple(single(self.features).shape[1:])

    @property
    def form(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """The name, the shape of an example and the type of each input, which are public."""
        return form(self.features)

    def values(self, rows: slice | NDArray[np.integer[Any]]) -> Inputs:
        """The values of some examples, a copy: numbers as float32 with scale and offset, tokens and masks unchanged."""
        alone = is_single(self.features)
        return each(lambda one: self._value(one[rows], scaled=alone or one.dtype == np.uint8), self.features)

    def some(self, rows: slice | NDArray[np.integer[Any]]) -> "Examples":
        """Some of the examples: a copy, or a view of a slice."""
        return replace(self, features=each(lambda one: one[rows], self.features), labels=self.labels[rows])

    def as_tensors(self) -> "tuple[Any, torch.Tensor]":
        """Features and labels as CPU tensors over the same memory. Do not write to them."""
        return each(shared_tensor, self.features), shared_tensor(self.labels)

    def _value(self, stored: NDArray[Any], *, scaled: bool) -> NDArray[Any]:
        if stored.dtype in (np.int64, np.bool_):
            return stored.copy()
        numbers = stored.astype(np.float32)
        if scaled:
            numbers *= np.float32(self.scale)
            numbers += np.float32(self.offset)
        return numbers


@dataclass(frozen=True, kw_only=True)
class Split:
    """Private training examples for the clients, and public test examples for the server, if any."""

    name: str
    train: Examples
    test: Examples | None = None

    def __post_init__(self) -> None:
        if self.test is not None:
            check_alike(self.train, self.test)


def check_alike(train: Examples, test: Examples) -> None:
    """Refuse test examples that a model of the training examples cannot read."""
    for name, of_train, of_test in (
        ("inputs", _part(train, 0), _part(test, 0)),
        ("shape", _part(train, 1), _part(test, 1)),
        ("dtype", _part(train, 2), _part(test, 2)),
        ("shape of the labels", train.labels.shape[1:], test.labels.shape[1:]),
        ("classes", train.classes, test.classes),
        ("scale", train.scale, test.scale),
        ("offset", train.offset, test.offset),
    ):
        if of_train != of_test:
            raise DataError(f"{name} is {of_train} in train and {of_test} in test: both must be the same")


def _part(examples: Examples, place: int) -> Any:
    """The names, shapes or types of the inputs."""
    parts = tuple(one[place] for one in examples.form)
    return parts[0] if place and is_single(examples.features) else parts


def hold_out(examples: Examples, *, name: str, test_examples: int, randomness: Randomness) -> Split:
    """Move random examples to a public test set, which the server holds. Both parts are copies."""
    _validate.count(test_examples=test_examples)
    if test_examples >= len(examples):
        remedy = f"give less than the {len(examples)} examples"
        raise ConfigError(field="test_examples", value=test_examples, remedy=remedy)
    order = np.argsort(randomness.stream("hold out").bits(len(examples)), kind="stable")
    held, kept = np.sort(order[:test_examples]), np.sort(order[test_examples:])
    return Split(name=name, train=examples.some(kept), test=examples.some(held))


def _check_inputs(features: Inputs, scale: float, offset: float) -> None:
    inputs, alone = named(features), is_single(features)
    if not inputs:
        raise DataError("features have no inputs: give at least one array")
    for name, one in inputs.items():
        if one.dtype not in _TYPES:
            kinds = "give uint8 or float32 (or int64 for whole numbers that stay such, bool for masks)"
            raise DataError(f"{name} are {one.dtype}: {kinds}, {_CONVERTS}")
        if one.ndim < 1 + alone or one.size == 0:
            remedy = "give [examples, ...] with at least one example and one feature"
            raise DataError(f"{name} have the shape {one.shape}: {remedy}")
        if not one.flags.c_contiguous:
            remedy = "give numpy.ascontiguousarray(features), or use from_arrays"
            raise DataError(f"{name} are not contiguous in memory: {remedy}")
        if one.dtype == np.float32:
            _check_finite(name, one)
    lengths = {name: len(one) for name, one in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the inputs have different numbers of examples ({lengths}): give a row of each for an example")
    scaled = (np.uint8, np.float32) if alone else (np.uint8,)
    if (scale, offset) != (1, 0) and not any(one.dtype in scaled for one in inputs.values()):
        raise DataError(
            f"scale = {scale} and offset = {offset} would change nothing: they are for numbers (of several inputs, for "
            "those stored as uint8); leave them out"
        )


def _check_labels(labels: Labels, classes: int | None) -> None:
    if classes is None:
        if labels.dtype != np.float32:
            remedy = "give float32 for regression, or state classes"
            raise DataError(f"labels are {labels.dtype} without classes: {remedy}")
        _check_finite("labels", labels)
        return
    if labels.dtype != np.int64:
        raise DataError(f"labels are {labels.dtype}: with classes = {classes} give int64, {_CONVERTS}")
    ignored = IGNORED if labels.ndim > 1 else 0
    wrong = np.argwhere(((labels < 0) & (labels != ignored)) | (labels >= classes))
    if len(wrong):
        place = [int(i) for i in wrong[0]]
        remedy = f"give labels from 0 to {classes - 1}"
        raise DataError(f"labels{place} = {labels[tuple(place)]}: with classes = {classes} {remedy}")


def _check_finite(name: str, values: NDArray[Any]) -> None:
    # The least and the largest value show a NaN or an infinity without a copy.
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        place = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        raise DataError(f"{name}{place} = {values[tuple(place)]}: give finite numbers (fill or drop what is missing)")


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
    """Labels as places in `classes`, if these are names, and the number of classes."""
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
    dataset: Any, *, classes: Classes = None, features: str | Sequence[str] = (), label: str = "label"
) -> Examples:
    """Examples from a map-style data set of pairs ``(features, label)``, or of dicts with these keys."""
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
    """1 / 255 for bytes of pictures."""
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
