"""Examples in one place: features and labels as shared arrays, checked once."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.data.inputs import Inputs, each, first, form, is_single, named, shared_tensor, single
from incrowd.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch

Features = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64] | NDArray[np.float32]

IGNORED = -100
"""The label of a place in a sequence that does not count, torch's own."""

_TYPES = (np.uint8, np.float32, np.int64, np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """N features and their N labels. What a feature means is ``features * scale + offset``.

    Features are one array, or several inputs of a model: a dict or a tuple of arrays (`incrowd.data.inputs`). Numbers
    are uint8 or float32; whole numbers of type int64, such as tokens, and masks of type bool stay what they are, and no
    scale applies to them. Of several inputs those stored as uint8 are scaled.

    ``scale``, ``offset`` and ``classes`` are public: state them, they are never computed from the data. With
    ``classes`` the labels are int64 in 0 .. classes - 1: one for each example [N], or one for each place of a sequence
    [N, T], where `IGNORED` marks places that do not count. Without it they are float32 numbers, one [N] or several
    [N, L] for each example: targets of a regression, or 0 and 1 for each of several labels.

    Guarantee: the arrays are the caller's own, never copies; every feature and label is finite; every label is in
    range.

    Edge cases: no examples, more or fewer labels than features, another dtype or memory order, a scale for what is not
    scaled: `DataError`. Use `from_arrays` for arrays that need a conversion. The representation shows no data.
    """

    features: Inputs = field(repr=False)
    labels: Labels = field(repr=False)
    classes: int | None = None
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        _validate.number(scale=self.scale, offset=self.offset)
        if self.scale == 0:
            raise ConfigError(
                field="scale", value=self.scale, remedy="give a number other than 0, or every feature is the same"
            )
        if self.classes is not None:
            _validate.count(classes=self.classes)
        _check_inputs(self.features)
        _check_scale(self.features, self.scale, self.offset)
        features = first(self.features)
        if self.labels.ndim == 0 or len(self.labels) != len(features) or {0, 1} & set(self.labels.shape[1:]):
            raise DataError(
                f"labels have the shape {self.labels.shape} and features {features.shape}: "
                "give one label for each example"
            )
        if self.classes is None:
            _check_numbers(self.labels)
        else:
            _check_classes(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example. Edge cases: several inputs are a `DataError`; see `form`."""
        shape: tuple[int, ...] = single(self.features).shape[1:]
        return shape

    @property
    def form(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What is public about the features: of each input the name, the shape of one example and the type."""
        return form(self.features)

    @property
    def nbytes(self) -> int:
        """Memory held by features and labels."""
        return int(sum(one.nbytes for one in named(self.features).values())) + self.labels.nbytes

    def values(self, rows: slice | NDArray[np.integer[Any]]) -> Inputs:
        """Features of some examples as they are meant, a copy: numbers as float32, ``features[rows] * scale + offset``;
        whole numbers and masks as they are; of several inputs each.
        """
        alone = is_single(self.features)
        return each(lambda one: self._meant(one[rows], scaled=alone or one.dtype == np.uint8), self.features)

    def some(self, rows: slice | NDArray[np.integer[Any]]) -> "Examples":
        """Some of the examples: a copy, or of a slice a view."""
        return replace(self, features=each(lambda one: one[rows], self.features), labels=self.labels[rows])

    def as_tensors(self) -> "tuple[Any, torch.Tensor]":
        """Features and labels as CPU tensors over the same memory. Do not write to them."""
        return each(shared_tensor, self.features), shared_tensor(self.labels)

    def _meant(self, stored: NDArray[Any], *, scaled: bool) -> NDArray[Any]:
        if stored.dtype in (np.int64, np.bool_):
            return stored.copy()
        numbers = stored.astype(np.float32)
        if scaled:
            numbers *= np.float32(self.scale)
            numbers += np.float32(self.offset)
        return numbers


@dataclass(frozen=True, kw_only=True)
class Split:
    """Training examples, which are private and go to clients, and test examples, which the server holds and which are
    public.

    Edge cases: ``test`` may be missing; if there is one it must look like ``train`` (shape, dtype, scale, classes).
    """

    name: str
    train: Examples
    test: Examples | None = None

    def __post_init__(self) -> None:
        if self.test is not None:
            check_alike(self.train, self.test)


def check_alike(train: Examples, test: Examples) -> None:
    """Refuse test examples that a model of the training examples could not read."""
    for what, of_train, of_test in (
        ("inputs", _names(train), _names(test)),
        ("shape", _shapes(train), _shapes(test)),
        ("dtype", _types(train), _types(test)),
        ("shape of the labels", train.labels.shape[1:], test.labels.shape[1:]),
        ("classes", train.classes, test.classes),
        ("scale", train.scale, test.scale),
        ("offset", train.offset, test.offset),
    ):
        if of_train != of_test:
            raise DataError(f"{what} is {of_train} in train and {of_test} in test: both must be the same")


def hold_out(examples: Examples, *, name: str, test_examples: int, randomness: Randomness) -> Split:
    """Put some examples, chosen at random, aside as a test set that the server holds.

    Those who do this declare the chosen examples public. Both parts are copies.
    """
    _validate.count(test_examples=test_examples)
    if test_examples >= len(examples):
        raise ConfigError(
            field="test_examples", value=test_examples, remedy=f"give less than the {len(examples)} examples"
        )
    order = np.argsort(randomness.stream("hold out").bits(len(examples)), kind="stable")
    return Split(
        name=name,
        train=examples.some(np.sort(order[test_examples:])),
        test=examples.some(np.sort(order[:test_examples])),
    )


def _names(examples: Examples) -> tuple[str, ...]:
    return tuple(name for name, _, _ in examples.form)


def _shapes(examples: Examples) -> Any:
    shapes = tuple(shape for _, shape, _ in examples.form)
    return shapes[0] if is_single(examples.features) else shapes


def _types(examples: Examples) -> Any:
    types = tuple(kind for _, _, kind in examples.form)
    return types[0] if is_single(examples.features) else types


def _check_inputs(features: Inputs) -> None:
    inputs = named(features)
    if not inputs:
        raise DataError("features have no inputs: give at least one array")
    for name, one in inputs.items():
        _check_features(name, one, alone=is_single(features))
    lengths = {name: len(one) for name, one in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the inputs have different numbers of examples ({lengths}): give a row of each for an example")


def _check_scale(features: Inputs, scale: float, offset: float) -> None:
    if scale == 1 and offset == 0:
        return
    kinds = (np.uint8, np.float32) if is_single(features) else (np.uint8,)
    if not any(one.dtype in kinds for one in named(features).values()):
        raise DataError(
            f"scale = {scale} and offset = {offset} would change nothing: they are for numbers (of several inputs, for "
            "those stored as uint8); leave them out"
        )


def _check_features(name: str, features: NDArray[Any], *, alone: bool) -> None:
    if features.dtype not in _TYPES:
        raise DataError(
            f"{name} are {features.dtype}: give uint8 or float32 (or int64 for whole numbers that stay such, bool for "
            "masks), or use from_arrays, which converts"
        )
    if features.ndim < 1 + alone or features.size == 0:
        raise DataError(
            f"{name} have the shape {features.shape}: give [examples, ...] with at least one example and one feature"
        )
    if not features.flags.c_contiguous:
        raise DataError(
            f"{name} are not contiguous in memory: give numpy.ascontiguousarray(features), or use from_arrays"
        )
    if features.dtype == np.float32:
        _check_finite(name, features)


def _check_numbers(labels: Labels) -> None:
    if labels.dtype != np.float32:
        raise DataError(f"labels are {labels.dtype} without classes: give float32 for regression, or state classes")
    _check_finite("labels", labels)


def _check_classes(labels: Labels, classes: int) -> None:
    if labels.dtype != np.int64:
        raise DataError(
            f"labels are {labels.dtype}: with classes = {classes} give int64, or use from_arrays, which converts"
        )
    ignored = IGNORED if labels.ndim > 1 else 0
    if labels.min() < min(0, ignored) or labels.max() >= classes or ignored:
        wrong = np.argwhere(((labels < 0) & (labels != ignored)) | (labels >= classes))
        if len(wrong):
            place = [int(i) for i in wrong[0]]
            remedy = f"give labels from 0 to {classes - 1}"
            raise DataError(f"labels{place} = {labels[tuple(place)]}: with classes = {classes} {remedy}")


def _check_finite(what: str, values: NDArray[Any]) -> None:
    # A NaN is passed on by both, an infinity is one of them: exact, and no memory beyond the array.
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        place = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        raise DataError(f"{what}{place} = {values[tuple(place)]}: give finite numbers (fill or drop what is missing)")
