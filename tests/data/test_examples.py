import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.data import Examples, hold_out
from incrowd.data.fingerprints import digests_of_examples
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


def eight(*, scale: float = 1.0) -> Examples:
    features = np.arange(40, dtype=np.float32).reshape(8, 5) / np.float32(scale)
    return Examples(features=features, labels=np.arange(8) % 2, classes=2, scale=scale)


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
