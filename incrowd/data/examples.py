"""Examples: features and labels as shared arrays, checked once. Features are one input of a model, or several."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch

Inputs = Any  # an array or a tensor, or a dict or a tuple of these


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
    """The only input. Edge cases: several are a `DataError`."""
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


if TYPE_CHECKING:
    import torch

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

    Edge cases: no examples, another number of labels, another dtype or memory order, a useless scale: `DataError`. Use
    `from_arrays` for arrays that need a conversion.
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
        """The shape of one feature. Edge cases: several inputs are a `DataError`."""
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
