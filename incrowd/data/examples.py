"""Examples in one place: features and labels as shared arrays, checked once."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.data._tensors import shared_tensor
from incrowd.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch

Features = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """N features and their N labels. What a feature means is ``features * scale + offset``.

    ``scale``, ``offset`` and ``classes`` are public: state them, they are never computed from the data. With
    ``classes`` the labels are int64 in 0 .. classes - 1; without it they are float32 numbers, for regression.

    Guarantee: the arrays are the caller's own, never copies; every feature and label is finite; every label is in
    range.

    Edge cases: no examples, more or fewer labels than features, another dtype or memory order: `DataError`. Use
    `from_arrays` for arrays that need a conversion. The representation shows no data.
    """

    features: Features = field(repr=False)
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
        _check_features(self.features)
        if self.labels.shape != self.features.shape[:1]:
            raise DataError(
                f"labels have the shape {self.labels.shape} and features {self.features.shape}: "
                "give one label for each example"
            )
        if self.classes is None:
            _check_numbers(self.labels)
        else:
            _check_classes(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.features.shape[1:]

    @property
    def nbytes(self) -> int:
        """Memory held by features and labels."""
        return self.features.nbytes + self.labels.nbytes

    def values(self, rows: slice | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Features of some examples as they are meant, a copy: ``features[rows] * scale + offset``."""
        scaled = self.features[rows].astype(np.float32)
        scaled *= np.float32(self.scale)
        scaled += np.float32(self.offset)
        return scaled

    def as_tensors(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """Features and labels as CPU tensors over the same memory. Do not write to them."""
        return shared_tensor(self.features), shared_tensor(self.labels)


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
        ("shape", train.shape, test.shape),
        ("dtype", train.features.dtype, test.features.dtype),
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
        train=_rows(examples, np.sort(order[test_examples:])),
        test=_rows(examples, np.sort(order[:test_examples])),
    )


def _rows(examples: Examples, rows: NDArray[np.intp]) -> Examples:
    return Examples(
        features=examples.features[rows],
        labels=examples.labels[rows],
        classes=examples.classes,
        scale=examples.scale,
        offset=examples.offset,
    )


def _check_features(features: Features) -> None:
    if features.dtype not in (np.uint8, np.float32):
        raise DataError(f"features are {features.dtype}: give uint8 or float32, or use from_arrays, which converts")
    if features.ndim < 2 or features.size == 0:
        raise DataError(
            f"features have the shape {features.shape}: give [examples, ...] with at least one example and one feature"
        )
    if not features.flags.c_contiguous:
        raise DataError(
            "features are not contiguous in memory: give numpy.ascontiguousarray(features), or use from_arrays"
        )
    if features.dtype == np.float32:
        _check_finite("features", features)


def _check_numbers(labels: Labels) -> None:
    if labels.dtype != np.float32:
        raise DataError(f"labels are {labels.dtype} without classes: give float32 for regression, or state classes")
    _check_finite("labels", labels)


def _check_classes(labels: Labels, classes: int) -> None:
    if labels.dtype != np.int64:
        raise DataError(
            f"labels are {labels.dtype}: with classes = {classes} give int64, or use from_arrays, which converts"
        )
    if labels.min() < 0 or labels.max() >= classes:
        row = np.flatnonzero((labels < 0) | (labels >= classes))[0]
        raise DataError(f"labels[{row}] = {labels[row]}: with classes = {classes} give labels from 0 to {classes - 1}")


def _check_finite(what: str, values: NDArray[Any]) -> None:
    # A NaN is passed on by both, an infinity is one of them: exact, and no memory beyond the array.
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        place = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        raise DataError(f"{what}{place} = {values[tuple(place)]}: give finite numbers (fill or drop what is missing)")
