import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd.data import Examples, Split, load_digits
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features import (
    FeatureMap,
    OrientedEnergies,
    SecondOrderEnergies,
    UnitNorm,
    compose,
    from_callable,
    transform,
)
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.transform import cache_file


def digits(count: int) -> Split:
    """The first training examples, and all that are held out: enough for several chunks, the last one not full."""
    found = load_digits()
    train = replace(found.train, features=found.train.features[:count], labels=found.train.labels[:count])
    return replace(found, train=train)


DIGITS = digits(400)
ENERGIES = OrientedEnergies(octave=0, stride=2)


class Counting:
    """Counts the examples it is given."""

    name = "counting"

    def __init__(self) -> None:
        self.seen = 0
        self.lock = threading.Lock()

    def __call__(self, values: Values) -> Values:
        with self.lock:
            self.seen += len(values)
        return values.reshape(len(values), -1) + 1


def test_maps_see_values_as_they_are_meant() -> None:
    features = transform(UnitNorm(), DIGITS.train).features
    counted = transform(Counting(), DIGITS.train).features
    np.testing.assert_array_equal(counted, DIGITS.train.values(slice(None)).reshape(len(DIGITS.train), -1) + 1)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)


# The cache


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Path]:
    transform(Counting(), DIGITS.train, cache=tmp_path / "new" / "folder")
    (path,) = (tmp_path / "new" / "folder").iterdir()
    yield path
    assert list(path.parent.iterdir()) == [path]  # nothing half-written is left


def seen(path: Path, examples: Examples = DIGITS.train) -> int:
    """How many examples a map is given when there is this cache; the features are right in any case."""
    counting = Counting()
    features = transform(counting, examples, cache=path.parent).features
    np.testing.assert_array_equal(features, examples.values(slice(None)).reshape(len(examples), -1) + 1)
    return counting.seen


def test_the_cache_is_a_file_that_numpy_reads_and_others_cannot(cached: Path) -> None:
    assert np.load(cached).shape == (400, 64)
    assert stat.S_IMODE(cached.stat().st_mode) == 0o600


@pytest.mark.slow
def test_other_examples_and_other_maps_have_other_files(tmp_path: Path) -> None:
    train = DIGITS.train
    changed = train.features.copy()
    changed[0, 0, 0] ^= 1
    alike = {
        "features": Examples(features=changed, labels=train.labels, classes=10, scale=1 / 16),
        "scale": Examples(features=train.features, labels=train.labels, classes=10, scale=1 / 8),
        "offset": Examples(features=train.features, labels=train.labels, classes=10, scale=1 / 16, offset=0.5),
        "shape": Examples(features=train.features.reshape(-1, 64), labels=train.labels, classes=10, scale=1 / 16),
    }
    transform(Counting(), train, cache=tmp_path)
    for number, (what, examples) in enumerate(alike.items(), start=2):
        transform(Counting(), examples, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == number, what
    others: list[FeatureMap] = [UnitNorm(), UnitNorm(centred=True), ENERGIES, SecondOrderEnergies(stride=2)]
    others.append(compose(Counting(), UnitNorm()))
    for number, other in enumerate(others, start=6):
        transform(other, train, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == number, other.name
    relabelled = Examples(features=train.features, labels=train.labels[::-1].copy(), classes=10, scale=1 / 16)
    assert seen(tmp_path / "any", relabelled) == 0


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    in_the_way = cache_file(tmp_path, UnitNorm(), DIGITS.train, alone=True)
    in_the_way.mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        transform(UnitNorm(), DIGITS.train, cache=tmp_path)
    assert list(tmp_path.iterdir()) == [in_the_way]


# Maps that break the promise


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values.reshape(len(values), -1) - values.mean(),
        lambda values: values.reshape(len(values), -1) * len(values),
        lambda values: values[::-1].reshape(len(values), -1),
    ],
)
def test_a_map_that_mixes_examples_is_refused(function: Callable[[Values], Values], tmp_path: Path) -> None:
    mixing = from_callable(function, name="mixing")
    with pytest.raises(ConfigError, match="change with the examples around it"):
        transform(mixing, DIGITS.train, cache=tmp_path)
    assert not list(tmp_path.iterdir())


# Composition, modules and callables


class TestAlone:
    """An example's features are to have the same bits in every company."""

    DIRECTIONS = np.random.Generator(np.random.PCG64(1)).normal(size=(64, 33)).astype(np.float32)
    MAP = from_callable(lambda values: values.reshape(len(values), -1) @ TestAlone.DIRECTIONS, name="product")

    def in_company(self, first: int, last: int, *, alone: bool) -> NDArray[np.float32]:
        some = replace(DIGITS.train, features=DIGITS.train.features[first:last], labels=DIGITS.train.labels[first:last])
        return np.asarray(transform(self.MAP, some, alone=alone).features)

    def test_neighbours_change_no_bit_of_an_example_s_features(self) -> None:
        everyone = self.in_company(0, 50, alone=True)
        for first, last in ((0, 1), (7, 40), (13, 50), (49, 50)):
            assert np.array_equal(self.in_company(first, last, alone=True), everyone[first:last])

    def test_control_in_blocks_they_do(self) -> None:
        everyone = self.in_company(0, 50, alone=False)
        assert any(
            not np.array_equal(self.in_company(first, last, alone=False), everyone[first:last])
            for first, last in ((0, 1), (7, 40), (13, 50), (49, 50))
        )
