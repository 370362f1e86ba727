from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from incrowd.data import MapDataset, from_arrays, from_dataset
from incrowd.errors import DataError


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_of_the_right_type_are_not_copied(dtype: type) -> None:
    features: NDArray[Any] = np.ones((3, 2), dtype)
    labels = np.zeros(3, np.int64)
    examples = from_arrays(features, labels, classes=1)
    assert np.shares_memory(examples.features, features)
    assert np.shares_memory(examples.labels, labels)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.float16, np.float64, np.bool_])
def test_other_numbers_are_converted(dtype: type) -> None:
    examples = from_arrays(np.array([[0, 1], [1, 0]], dtype), np.array([1, 0], dtype), classes=2, scale=0.5)
    assert (examples.features.dtype.name, examples.labels.dtype.name) == ("float32", "int64")
    assert examples.features.tolist() == [[0, 1], [1, 0]]
    assert examples.labels.tolist() == [1, 0]
    assert examples.scale == 0.5


def test_memory_in_another_order_is_put_right() -> None:
    features = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    assert from_arrays(features, [0, 0, 0], classes=1).features.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_tensors_that_need_a_gradient_are_read() -> None:
    examples = from_arrays(torch.ones(2, 3, requires_grad=True), torch.tensor([0, 1]), classes=2)
    assert examples.features.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_labels_without_classes_are_numbers() -> None:
    examples = from_arrays([[1.0], [2.0]], [1, 2])
    assert (examples.labels.dtype.name, examples.labels.tolist(), examples.classes) == ("float32", [1.0, 2.0], None)


@pytest.mark.parametrize(
    ("features", "labels", "classes", "message"),
    [
        ([["a"], ["b"]], [0, 1], 2, "features are <U1: give numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], 2, "features have no common shape"),
        ([[1.0], [2.0]], ["x", "y"], 2, "labels are <U1: give numbers"),
        ([[1.0], [2.0]], [0.0, 0.5], 2, r"labels\[1\] = 0.5: with classes = 2 give whole numbers"),
        ([[1.0], [2.0]], [np.nan, 0.0], 2, r"labels\[0\] = nan"),
        ([[1.0], [2.0]], [0.0, np.inf], 2, r"labels\[1\] = inf"),
        ([[1.0], [2.0]], [0.0, 1e300], 2, r"labels\[1\] = 1e\+300"),
        ([[1.0], [2.0]], [0, 2], 2, r"labels\[1\] = 2"),
        ([[1.0], [1e300]], [0, 1], 2, r"features\[1, 0\] = inf"),
        ([[1.0], [2.0]], [0, 1e300], None, r"labels\[1\] = inf"),
        (1.0, 0, 2, "features have the shape"),
        ([[1 + 1j]], [0], 2, "features are complex128"),
    ],
)
def test_unusable_arrays_are_refused(features: ArrayLike, labels: ArrayLike, classes: int | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(features, labels, classes=classes)


class Pairs:
    """The smallest map-style data set."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int, /) -> Any:
        return self.items[index]


class Stream(IterableDataset[Any]):
    """A data set without indices."""

    def __iter__(self) -> Iterator[Any]:
        return iter([])


class StreamWithLength(Stream):
    """A data set without indices that has a length."""

    def __len__(self) -> int:
        return 3


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """A user's own torch data set."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index) ** 2, requires_grad=True), index % 2


def test_torch_data_sets_are_read() -> None:
    examples = from_dataset(Squares(), classes=2)
    assert examples.features.tolist() == [[0, 0], [1, 1], [4, 4], [9, 9]]
    assert examples.labels.tolist() == [0, 1, 0, 1]
    images = torch.arange(8, dtype=torch.uint8).reshape(2, 2, 2)
    examples = from_dataset(TensorDataset(images, torch.tensor([1, 0])), classes=2, scale=1 / 255, offset=0.5)
    assert (examples.features.dtype.name, examples.scale, examples.offset) == ("uint8", 1 / 255, 0.5)
    np.testing.assert_array_equal(examples.features, images.numpy())
    assert examples.labels.tolist() == [1, 0]


def test_labels_of_a_data_set_may_be_numbers() -> None:
    examples = from_dataset(Pairs(([1.0], 0.5), ([2.0], np.array([1.5]))))
    assert (examples.labels.dtype.name, examples.labels.tolist()) == ("float32", [0.5, 1.5])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "Stream has no length or no indices: give a map-style data set"),
        (StreamWithLength(), "StreamWithLength has no indices"),
        (Pairs(), "Pairs is empty"),
        (Pairs(([1.0], 0), [1.0]), "item 1 is list: give pairs"),
        (Pairs(([1.0], 0), 7), "item 1 is int: give pairs"),
        (Pairs(([1.0], 0), ([1.0, 2.0], 0)), r"item 1 is float64 of shape \(2,\), item 0 is float64 of shape \(1,\)"),
        (Pairs(([1.0], 0), ([1], 0)), "item 1 is int64"),
        (Pairs(([1.0], [0, 1])), r"item 0 has a label of shape \(2,\)"),
        (Pairs(([1.0], "cat")), "label of item 0 are <U3: give numbers"),
        (Pairs(([1.0], 0), ([np.nan], 0)), r"features\[1, 0\] = nan"),
    ],
)
def test_unusable_data_sets_are_refused(dataset: MapDataset, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_dataset(dataset, classes=2)
