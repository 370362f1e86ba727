import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, TensorDataset

from incrowd import Clients
from incrowd._random import SeededRandomness
from incrowd.data import Examples, from_arrays, from_dataset, hold_out
from incrowd.data.fingerprints import digests_of_examples
from incrowd.errors import DataError

FEATURES = np.ones((3, 2), np.float32)
LABELS = np.zeros(3, np.int64)


# Several inputs, whole numbers, several labels.

TOKENS = np.arange(6).reshape(3, 2)


def several(**changed: Any) -> Examples:
    image = np.full((3, 2, 2), 51, np.uint8)
    features = {"image": image, "tokens": TOKENS, "mask": TOKENS > 2, "table": FEATURES}
    given: dict[str, Any] = {"features": features, "labels": LABELS, "classes": 1, "scale": 1 / 255, **changed}
    return Examples(**given)


def test_labels_may_be_several() -> None:
    marks = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    assert Examples(features=FEATURES, labels=marks).labels.shape == (3, 2)
    places = np.array([[0, -100], [1, 1], [0, 0]])
    assert Examples(features=FEATURES, labels=places, classes=2).labels.shape == (3, 2)
    with pytest.raises(DataError, match=r"labels\[0, 1\] = -1: with classes = 2"):
        Examples(features=FEATURES, labels=np.array([[0, -1], [1, 1], [0, 0]]), classes=2)
    with pytest.raises(DataError, match=r"labels\[1\] = -100: with classes = 2"):
        Examples(features=FEATURES, labels=np.array([0, -100, 1]), classes=2)


KEY = b"k" * 32
EIGHT = np.arange(40, dtype=np.float32).reshape(8, 5)


def eight(*, scale: float = 1.0) -> Examples:
    return Examples(features=EIGHT / np.float32(scale), labels=np.arange(8) % 2, classes=2, scale=scale)


def test_holding_out_divides_the_examples_and_no_representation_shows_them() -> None:
    split = hold_out(eight(scale=0.5), name="eight", test_examples=3, randomness=SeededRandomness(seed=1))
    assert split.test is not None
    assert (split.name, len(split.train), len(split.test), split.test.scale) == ("eight", 5, 3, 0.5)
    together = np.concatenate([split.train.features, split.test.features])
    np.testing.assert_array_equal(np.sort(together, axis=0), eight(scale=0.5).features)
    assert repr(split.test) == "Examples(classes=2, scale=0.5, offset=0.0)"


def test_a_fingerprint_sees_every_input() -> None:
    def seen(examples: Examples) -> list[int]:
        found: list[int] = digests_of_examples(examples, key=KEY).exact.tolist()
        return found

    turned = dict(reversed(several().features.items()))
    assert seen(several()) == seen(several(features=turned))
    for name in several().features:
        changed = {**several().features, name: several().features[name].copy()}
        changed[name].flat[0] += 1
        assert seen(several())[0] != seen(several(features=changed))[0]
        assert seen(several())[1:] == seen(several(features=changed))[1:]
    renamed = {f"{name}s": one for name, one in several().features.items()}
    assert seen(several()) != seen(several(features=renamed))


def test_examples_are_known_by_what_they_mean() -> None:
    one = digests_of_examples(eight(), key=KEY)
    same, other = digests_of_examples(eight(scale=0.25), key=KEY), digests_of_examples(eight(), key=b"o" * 32)
    turned = Examples(features=eight().features[:, ::-1].copy(), labels=eight().labels, classes=2)
    relabelled = replace(eight(), labels=1 - eight().labels)
    for kind in ("exact", "cells", "features"):
        its, lies, told = (getattr(each, kind) for each in (one, same, other))
        assert np.array_equal(its, lies)
        assert len(set(its.tolist()) | set(told.tolist())) == 16
        for changed, kept in ((turned, "cells"), (relabelled, "features")):
            found = getattr(digests_of_examples(changed, key=KEY), kind)
            assert np.array_equal(found, its) == (kind == kept)


def test_examples_are_not_in_memory_together_as_numbers() -> None:
    features = np.zeros((20_000, 200), np.uint8)
    examples = Examples(features=features, labels=np.arange(20_000) % 2, classes=2)
    tracemalloc.start()
    try:
        digests = digests_of_examples(examples, key=KEY)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(set(digests.features.tolist())) == 1
    assert most < 8 * features.nbytes


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_of_the_right_type_are_not_copied(dtype: type) -> None:
    features: NDArray[Any] = np.ones((3, 2), dtype)
    labels = np.zeros(3, np.int64)
    examples = from_arrays(features, labels, classes=1, scale=1)
    assert np.shares_memory(examples.features, features)
    assert np.shares_memory(examples.labels, labels)


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


def test_pictures_of_bytes_become_0_to_1_at_every_door() -> None:
    pictures, labels = np.full((6, 2, 2), 255, np.uint8), np.arange(6) % 2
    pairs = list(zip(pictures, labels, strict=True))
    owner = np.arange(6) % 3
    found = [
        from_arrays(pictures, labels, classes=2),
        from_dataset(pairs, classes=2),
        Clients.from_arrays(pictures, labels, owner=owner, classes=2, clients=3, name="a").examples,
        Clients.from_dataset(pairs, owner=owner, classes=2, clients=3, name="b").examples,
        Clients.from_partitions({"u": (pictures, labels)}, classes=2, clients=1, name="c").examples,
    ]
    assert [float(np.max(one.values(slice(None)))) for one in found] == [1.0] * len(found)
    as_they_are = from_arrays(pictures, labels, classes=2, scale=1)  # the control: a stated scale holds
    assert float(np.max(as_they_are.values(slice(None)))) == 255.0
    assert np.max(from_arrays(pictures.astype(np.float32), labels, classes=2).values(slice(None))) == 255.0
