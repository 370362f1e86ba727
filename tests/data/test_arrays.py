from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset, TensorDataset

from incrowd.data import from_arrays, from_dataset
from incrowd.errors import DataError


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_of_the_right_type_are_not_copied(dtype: type) -> None:
    features: NDArray[Any] = np.ones((3, 2), dtype)
    labels = np.zeros(3, np.int64)
    examples = from_arrays(features, labels, classes=1, scale=1)
    assert np.shares_memory(examples.features, features)
    assert np.shares_memory(examples.labels, labels)


@pytest.mark.parametrize(
    ("features", "labels", "classes", "message"),
    [
        ([["a"], ["b"]], [0, 1], 2, "features are <U1: give numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], 2, "features have no common shape"),
        ([[1.0], [2.0]], ["x", "y"], 2, "labels are words: state them in order"),
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
    examples = from_dataset(TensorDataset(images, torch.tensor([1, 0])), classes=2)
    assert (examples.features.dtype.name, examples.scale, examples.offset) == ("uint8", 1 / 255, 0.0)
    np.testing.assert_array_equal(examples.features, images.numpy())
    assert examples.labels.tolist() == [1, 0]


def test_whole_numbers_stay_whole_unless_they_are_scaled() -> None:
    tokens: NDArray[Any] = np.arange(4).reshape(2, 2)
    assert np.shares_memory(from_arrays(tokens, [0, 1], classes=2).features, tokens)
    assert from_arrays(tokens.astype(np.int32), [0, 1], classes=2).features.dtype == np.int64
    assert from_arrays(tokens, [0, 1], classes=2, offset=1.0).features.dtype == np.float32
    with pytest.raises(DataError, match=r"features\[0, 1\] = 16777217: float32 would change it"):
        from_arrays(np.array([[0, 2**24 + 1]]), [0], classes=1, scale=0.5)
    with pytest.raises(DataError, match=r"labels\[1\] = 16777217: float32 would change it"):
        from_arrays([[1.0], [2.0]], [0, 2**24 + 1])
    with pytest.raises(DataError, match=r"below 2\^63"):
        from_arrays(np.array([[2**63]], np.uint64), [0], classes=1)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "list is empty: give at least one example"),
        ([(np.zeros(2), 0, 1)], "item 0 is tuple: give pairs"),
        ([(np.zeros(2), 0), (np.zeros(3), 1)], "item 1 has features of type float64 and shape"),
        ([(np.zeros(2), 0), (np.zeros(2, int), 1)], "item 1 has features of type int64"),
        ([(np.zeros(2), 0), ({"a": np.zeros(2)}, 1)], "item 1 has other inputs than item 0"),
        ([(np.zeros(2), [0, 1]), (np.zeros(2), 1)], r"item 1 has a label of type int64 and shape \(\)"),
        ({1, 2}, "set has no length or no indices"),
    ],
)
def test_a_data_set_of_several_forms_is_refused(items: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_dataset(items, classes=2)


def test_labels_of_a_data_set_may_mix_whole_numbers_and_fractions() -> None:
    pairs = [((np.zeros(2), np.ones(1)), 1), ((np.ones(2), np.ones(1)), 2.5)]
    examples = from_dataset(pairs)
    assert (examples.labels.tolist(), len(examples.features)) == ([1.0, 2.5], 2)
