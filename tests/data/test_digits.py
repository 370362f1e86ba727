import hashlib

import numpy as np

from incrowd.data import load_digits


def test_digits_are_real_images_of_ten_classes() -> None:
    split = load_digits()
    assert split.test is not None
    assert (len(split.train), len(split.test), split.train.shape) == (1500, 297, (8, 8))
    assert set(split.train.labels.tolist()) == set(split.test.labels.tolist()) == set(range(10))
    values = split.train.values(slice(None))
    assert (values.min(), values.max()) == (0.0, 1.0)
    # Real digits are told apart by the nearest class mean; noise would be right one time in ten.
    means = np.stack([values[split.train.labels == label].mean(axis=0) for label in range(10)])
    distances = ((split.test.values(slice(None))[:, None] - means) ** 2).sum(axis=(2, 3))
    assert (distances.argmin(axis=1) == split.test.labels).mean() > 0.85


def test_the_held_out_digits_are_always_the_same() -> None:
    held = load_digits().test
    assert held is not None
    assert hashlib.sha256(held.features.tobytes()).hexdigest().startswith("7b45a589c2014588")
