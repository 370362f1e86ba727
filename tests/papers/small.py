"""A data set in MNIST's format that is drawn in a second: ten pseudo-glyphs, each in many shaky renderings."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from papers.geyer.handwriting import Glyphs

TRAIN, TEST = 30, 20  # of each class


def write_set(folder: Path) -> None:
    """The four files."""
    glyphs = Glyphs(count=10, variants=TRAIN + TEST, seed=1)
    images = np.stack([glyphs.render(number, shape=(28, 28)) for number in range(10)])
    pixels = np.rint(255 * images).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", pixels[:, :TRAIN]), ("t10k", pixels[:, TRAIN:])):
        count = rows.shape[1]
        # One of each class after the other, so that any part of the set has all classes.
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", rows.transpose(1, 0, 2, 3).reshape(-1, 28, 28))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.tile(np.arange(10, dtype=np.uint8), count))


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """One file in the IDX format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes(), compresslevel=1))
