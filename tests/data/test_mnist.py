import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd.data import MNIST, load_mnist
from incrowd.errors import DataError

IMAGES = np.arange(5 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(5, 28, 28)
LABELS = np.array([3, 1, 4, 1, 9], np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 5), ("t10k", 2)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES[:count])))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(LABELS[:count]))
    return tmp_path


def test_the_four_files_become_a_split(folder: Path) -> None:
    split = load_mnist(str(folder))
    assert split.test is not None
    assert split.name == "mnist"
    np.testing.assert_array_equal(split.train.features, IMAGES)
    np.testing.assert_array_equal(split.train.labels, LABELS)
    np.testing.assert_array_equal(split.test.features, IMAGES[:2])
    np.testing.assert_array_equal(split.test.labels, LABELS[:2])
    assert (split.train.features.dtype.name, split.train.labels.dtype.name) == ("uint8", "int64")
    assert split.train.values(slice(None)).max() == 1.0


def test_a_missing_file_is_named_with_the_remedy(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        DataError, match=r"has neither t10k-labels-idx1-ubyte\.gz nor .* or run download_mnist"
    ) as error:
        load_mnist(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("stem", "array", "message"),
    [
        ("train-labels-idx1-ubyte", LABELS[:4], "holds 4 labels for the 5 images of train-images-idx3-ubyte.gz"),
        ("train-labels-idx1-ubyte", LABELS + 1, "holds the label 10, give labels from 0 to 9"),
        ("train-labels-idx1-ubyte", IMAGES, r"holds an array of shape \(5, 28, 28\), labels have one size"),
        ("t10k-images-idx3-ubyte.gz", LABELS[:2], r"holds an array of shape \(2,\), images have three sizes"),
    ],
)
def test_files_that_do_not_fit_are_named(folder: Path, stem: str, array: NDArray[np.uint8], message: str) -> None:
    (folder / stem).write_bytes(idx(array))
    with pytest.raises(DataError, match=message) as error:
        load_mnist(folder)
    assert str(folder / stem) in str(error.value)


def test_test_images_of_another_size_are_refused(folder: Path) -> None:
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(idx(IMAGES[:2, :14].copy()))
    with pytest.raises(DataError, match=r"shape is \(28, 28\) in train and \(14, 28\) in test"):
        load_mnist(folder)


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: broken or truncated gzip"):
        load_mnist(folder)


def test_verifying_refuses_what_is_not_the_original(folder: Path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not the original file"):
        load_mnist(folder, verify=MNIST)


def test_verifying_accepts_what_has_the_checksums(folder: Path) -> None:
    checksums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert len(load_mnist(folder, verify=replace(MNIST, checksums=checksums)).train) == 5


def test_verifying_needs_the_original_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: cannot be verified"):
        load_mnist(tmp_path, verify=MNIST)


def test_the_source_names_four_files_and_two_mirrors() -> None:
    assert {name.removesuffix(".gz") for name in MNIST.checksums} == {
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    }
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in MNIST.checksums.values())
    assert len(MNIST.mirrors) == 2
