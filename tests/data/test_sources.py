"""Data sets in files: digits, MNIST's four files, folders of pictures."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.data import load_digits, load_mnist
from incrowd.data.sources import read_idx, read_pictures
from incrowd.errors import DataError

IMAGES = np.arange(5 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(5, 28, 28)
LABELS = np.array([3, 1, 4, 1, 9], np.uint8)
SOME = bytes.fromhex("00000802 00000002 00000003") + bytes(range(6))
PACKED = gzip.compress(SOME, mtime=0)  # without the time, which would get into the names of tests


def idx(array: NDArray[np.uint8]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 5), ("t10k", 2)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES[:count])))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(LABELS[:count]))
    return tmp_path


def test_the_digits_are_the_same_every_time() -> None:
    first, again = load_digits(), load_digits()
    assert (len(first.train), first.train.values(slice(None)).max()) == (1500, 1.0)
    np.testing.assert_array_equal(first.train.features, again.train.features)
    first.train.features[:] = 0  # the control: the next caller has digits of its own
    assert again.train.features.any()


def test_the_four_files_become_a_split(folder: Path) -> None:
    split = load_mnist(str(folder))
    assert split.test is not None
    np.testing.assert_array_equal(split.train.features, IMAGES)
    np.testing.assert_array_equal(split.test.labels, LABELS[:2])
    assert split.train.values(slice(None)).max() == 1.0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t10k-labels-idx1-ubyte", None, r"has neither t10k-labels-idx1-ubyte\.gz nor .* from https"),
        ("t10k-labels-idx1-ubyte", idx(LABELS[:3]), "holds 3 labels for 2 images"),
        ("t10k-labels-idx1-ubyte", idx(LABELS[:2] + 8), "holds the label 11"),
        ("t10k-labels-idx1-ubyte", idx(IMAGES), "are files swapped"),
        ("train-images-idx3-ubyte.gz", PACKED[:12], "broken or truncated gzip"),
        ("train-images-idx3-ubyte.gz", b"\0\0\x0d\1", "no IDX file of unsigned bytes"),
        ("train-images-idx3-ubyte.gz", SOME[:-1], r"holds 5 values where its header says \[2, 3\]"),
    ],
)
def test_a_broken_file_is_named(folder: Path, name: str, content: bytes | None, message: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        load_mnist(folder)
    assert str(folder) in str(error.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda tail: PACKED[:12] + tail)))
def test_bytes_of_any_kind_give_values_or_an_error_of_ours(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some"
    path.write_bytes(content)
    try:
        assert read_idx(path).size > 0
    except DataError:
        return


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)


def test_a_folder_of_pictures_has_classes_and_owners(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for owner, label in (("ann", "cat"), ("bob", "dog")):
        (tmp_path / owner / label).mkdir(parents=True)
        image.new("RGB", (3, 2), "red").save(tmp_path / owner / label / "one.png")
    pictures, labels, owners = read_pictures(tmp_path, owners=True)
    assert (pictures.shape, pictures[0, 0].max(), labels, owners) == ((2, 3, 2, 3), 255, ["cat", "dog"], ["ann", "bob"])
    grey, _, alone = read_pictures(tmp_path / "ann", owners=False)
    assert (grey.shape, alone) == ((1, 3, 2, 3), ["cat/one.png"])
    image.new("L", (3, 2)).save(tmp_path / "bob" / "dog" / "two.png")
    with pytest.raises(DataError, match="one size and mode"):
        read_pictures(tmp_path, owners=True)
    (tmp_path / "bob" / "dog" / "one.png").write_bytes(b"none")
    with pytest.raises(DataError, match="cannot be read as a picture"):
        read_pictures(tmp_path, owners=True)
    with pytest.raises(DataError, match="OWNER/CLASS"):
        read_pictures(tmp_path / "ann" / "cat", owners=True)


def test_pictures_without_pillow_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(DataError, match="pip install pillow"):
        read_pictures(tmp_path, owners=False)
