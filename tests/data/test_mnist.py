import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd.data import load_mnist
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
