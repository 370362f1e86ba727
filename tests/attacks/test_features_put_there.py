"""A folder of features that others may write to: what they put there is not what somebody learns from.

Attack: the name of a file is keyed, but its checksum was a plain hash that said nothing of the name. So a file could be
given another's name without being read: a run on one data set, and on its ledger, then learned from the people of
another, or measured "public" accuracy on private examples. Whoever could not read could still write numbers of their
own.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from incrowd.data import Examples
from incrowd.learning.features import UnitNorm, transform
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.transform import cache_file, load_features, save_features


def people(seed: int) -> Examples:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(40, 5)).astype(np.float32)
    return Examples(features=features, labels=np.zeros(40, np.int64), classes=2)


THESE, OTHERS = people(1), people(2)


def features(examples: Examples, folder: Path | None = None) -> Values:
    found: Values = transform(UnitNorm(), examples, cache=folder).features
    return found


def place(folder: Path, examples: Examples) -> Path:
    return cache_file(folder, UnitNorm(), examples, alone=True)


def test_a_file_of_other_people_under_this_name_is_not_taken(tmp_path: Path) -> None:
    expected = features(THESE)
    features(THESE, tmp_path)
    features(OTHERS, tmp_path)
    place(tmp_path, OTHERS).replace(place(tmp_path, THESE))
    assert np.array_equal(features(THESE, tmp_path), expected)
    place(tmp_path, THESE).unlink()
    features(OTHERS, tmp_path)
    place(tmp_path, THESE).symlink_to(place(tmp_path, OTHERS))
    assert np.array_equal(features(THESE, tmp_path), expected)


def plainly_checked(path: Path, array: Values) -> None:
    """As anybody can write it."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode() + array.tobytes()).digest()
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)
        stream.write(digest)


def asking_for(shape: tuple[int, ...]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
            stream.write(bytes(100))

    return write


@pytest.mark.parametrize(
    "put",
    [
        lambda path: plainly_checked(path, np.zeros((40, 5), np.float32)),
        lambda path: plainly_checked(path, np.zeros((41, 5), np.float32)),
        lambda path: plainly_checked(path, np.full((40, 5), np.nan, np.float32)),
        asking_for((2**70, 5)),
        asking_for((2**62, 5)),
        asking_for((-1, 5)),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
    ],
    ids=["zeros", "one more", "no numbers", "endless", "large", "less than nothing", "a pipe", "a device"],
)
def test_what_others_have_put_there_is_computed_anew(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = place(tmp_path, THESE)
    put(path)
    assert np.array_equal(features(THESE, tmp_path), features(THESE))
    assert path.is_file()
    assert not path.is_symlink()


def test_control_what_one_has_saved_is_taken(tmp_path: Path) -> None:
    mine = np.ones((40, 5), np.float32)
    save_features(place(tmp_path, THESE), mine)
    assert np.array_equal(features(THESE, tmp_path), mine)


def test_what_another_user_has_sealed_is_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(tmp_path, THESE)
    with monkeypatch.context() as another:
        another.setenv("INCROWD_STATE", str(tmp_path / "another's"))
        save_features(path, np.ones((40, 5), np.float32))
        assert load_features(path) is not None
    assert load_features(path) is None
    assert np.array_equal(features(THESE, tmp_path), features(THESE))
