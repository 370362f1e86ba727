import tracemalloc
from typing import Any

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.data import Clients, Examples, Partition, hold_out
from incrowd.data.rows import example_rows, owner_digests
from incrowd.errors import DataError


def pictures(number: int = 6, *, classes: int | None = 3, scale: float = 1 / 255, offset: float = 0.0) -> Examples:
    return Examples(
        features=np.arange(number * 4, dtype=np.uint8).reshape(number, 2, 2),
        labels=np.arange(number) % 3,
        classes=classes,
        scale=scale,
        offset=offset,
    )


def numbers(number: int = 4) -> Examples:
    return Examples(features=np.ones((number, 2), np.float32), labels=np.ones(number, np.float32))


def test_representation_shows_no_data() -> None:
    assert repr(pictures(scale=0.5)) == "Examples(classes=3, scale=0.5, offset=0.0)"


FEATURES = np.ones((3, 2), np.float32)
LABELS = np.zeros(3, np.int64)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_not_finite_is_named(value: float) -> None:
    features = np.zeros((4, 2, 3), np.float32)
    features[2, 1, 0] = value
    with pytest.raises(DataError, match=rf"features\[2, 1, 0\] = {value}"):
        Examples(features=features, labels=np.zeros(4, np.int64), classes=1)


def test_holding_out_divides_the_examples() -> None:
    examples = pictures(20, scale=0.5, offset=1.0)
    split = hold_out(examples, name="pictures", test_examples=6, randomness=SeededRandomness(seed=1))
    assert split.test is not None
    assert (split.name, len(split.train), len(split.test)) == ("pictures", 14, 6)
    together = np.concatenate([split.train.features, split.test.features])
    order = np.argsort(together[:, 0, 0])
    np.testing.assert_array_equal(together[order], examples.features)
    np.testing.assert_array_equal(np.concatenate([split.train.labels, split.test.labels])[order], examples.labels)
    assert (split.test.scale, split.test.offset, split.test.classes) == (0.5, 1.0, 3)


def test_holding_out_repeats_itself_under_a_seed_only() -> None:
    def held(seed: int) -> list[int]:
        split = hold_out(pictures(40), name="", test_examples=9, randomness=SeededRandomness(seed=seed))
        assert split.test is not None
        return [int(value) for value in split.test.features[:, 0, 0]]

    assert held(1) == held(1) != held(2)


# Several inputs, whole numbers, several labels.

TOKENS = np.arange(6).reshape(3, 2)


def several(**changed: Any) -> Examples:
    image = np.full((3, 2, 2), 51, np.uint8)
    features = {"image": image, "tokens": TOKENS, "mask": TOKENS > 2, "table": FEATURES}
    given: dict[str, Any] = {"features": features, "labels": LABELS, "classes": 1, "scale": 1 / 255, **changed}
    return Examples(**given)


def test_several_inputs_keep_their_types_and_those_of_bytes_are_scaled() -> None:
    examples = several()
    assert len(examples) == 3
    values = examples.values(slice(1, 3))
    np.testing.assert_allclose(values["image"], 0.2, rtol=1e-6)
    np.testing.assert_array_equal(values["tokens"], [[2, 3], [4, 5]])
    np.testing.assert_array_equal(values["mask"], [[False, True], [True, True]])
    np.testing.assert_array_equal(values["table"], FEATURES[1:])
    assert [one.dtype.name for one in values.values()] == ["float32", "int64", "bool", "float32"]
    assert examples.nbytes == 12 + 48 + 6 + 24 + 24
    features, _ = examples.as_tensors()
    assert features["tokens"].data_ptr() == TOKENS.ctypes.data
    some = examples.some(np.array([2, 0]))
    assert some.features["tokens"].tolist() == [[4, 5], [0, 1]]
    with pytest.raises(DataError, match=r"several inputs \(features\['image'\], .*one array"):
        _ = examples.shape


def test_labels_may_be_several() -> None:
    marks = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    assert Examples(features=FEATURES, labels=marks).labels.shape == (3, 2)
    places = np.array([[0, -100], [1, 1], [0, 0]])
    assert Examples(features=FEATURES, labels=places, classes=2).labels.shape == (3, 2)
    with pytest.raises(DataError, match=r"labels\[0, 1\] = -1: with classes = 2"):
        Examples(features=FEATURES, labels=np.array([[0, -1], [1, 1], [0, 0]]), classes=2)
    with pytest.raises(DataError, match=r"labels\[1\] = -100: with classes = 2"):
        Examples(features=FEATURES, labels=np.array([0, -100, 1]), classes=2)


def test_a_fingerprint_sees_every_input() -> None:
    def seen(examples: Examples) -> list[bytes]:
        return list(example_rows(examples))

    turned = dict(reversed(several().features.items()))
    assert seen(several()) == seen(several(features=turned))
    for name in several().features:
        changed = {**several().features, name: several().features[name].copy()}
        changed[name].flat[0] += 1
        assert seen(several())[0] != seen(several(features=changed))[0]
        assert seen(several())[1:] == seen(several(features=changed))[1:]
    renamed = {f"{name}s": one for name, one in several().features.items()}
    assert seen(several()) != seen(several(features=renamed))


def held(*clients: list[int], examples: Examples | None = None) -> list[bytes]:
    """The digests of clients who have these rows."""
    offsets = np.cumsum([0, *map(len, clients)])
    partition = Partition(offsets=offsets, indices=np.concatenate([np.array(one) for one in clients]))
    return list(owner_digests(Clients(examples=examples or eight(), partition=partition)))


def eight(*, scale: float = 1.0) -> Examples:
    features = np.arange(40, dtype=np.float32).reshape(8, 5) / np.float32(scale)
    return Examples(features=features, labels=np.arange(8) % 2, classes=2, scale=scale)


def test_a_digest_of_a_client_is_of_all_that_it_has_in_any_order() -> None:
    one, two = held([0, 1, 2], [2, 3])
    assert held([2, 0, 1], [3, 2]) == [one, two]
    assert held([3, 2], [1, 2, 0]) == [two, one]
    assert held([0, 1, 2], [2, 3], examples=eight(scale=0.25)) == [one, two]
    others = held([0, 1], [0, 1, 2, 2], [0, 1, 3], [2], [3], [2, 3, 3])
    assert len({one, two, *others}) == 8


def test_examples_that_many_clients_hold_are_not_in_memory_together() -> None:
    """Ten thousand clients with 600 of 60,000 pictures each would be 25 GB of rows."""
    features = np.random.default_rng(0).normal(size=(6000, 200)).astype(np.float32)
    examples, clients = Examples(features=features, labels=np.arange(6000) % 2, classes=2), 20
    partition = Partition(offsets=np.arange(clients + 1) * 6000, indices=np.tile(np.arange(6000), clients))
    data = Clients(examples=examples, partition=partition)
    tracemalloc.start()
    try:
        digests = list(owner_digests(data))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(digests) == clients
    assert len(set(digests)) == 1
    assert most < 1.5 * features.nbytes  # together they are twenty times as much
