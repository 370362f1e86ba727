"""MNIST (LeCun, Cortes, Burges): 60,000 training and 10,000 test images of digits, from four IDX files in a folder."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incrowd.data.download import DownloadSource, fetch
from incrowd.data.examples import Examples, Split
from incrowd.data.idx import read_idx
from incrowd.errors import DataError

CLASSES = 10

MNIST = DownloadSource(
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    checksums={
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
"""The original files, and where to get them. ``dataclasses.replace(MNIST, mirrors=...)`` names another place."""


def load_mnist(folder: Path | str, *, verify: DownloadSource | None = None) -> Split:
    """MNIST, or a data set in the same four files, as [N, 28, 28] bytes whose meaning is ``byte / 255``.

    A folder is taken as it is, unless ``verify`` names the source, say `MNIST`, whose checksums its files must have.

    Edge cases: a missing or broken file, more labels than images or fewer, a label above 9, test images of another
    size: `DataError`, which names the file.
    """
    where = Path(folder)
    if verify is not None:
        _verify(where, verify)
    return Split(name="mnist", train=_examples(where, "train"), test=_examples(where, "t10k"))


def download_mnist(folder: Path | str, *, source: DownloadSource = MNIST) -> None:
    """Fetch those of the four files that are missing in the folder, as `incrowd.data.download.fetch` promises."""
    for name in source.checksums:
        fetch(name, folder=Path(folder), source=source)


def _examples(folder: Path, part: str) -> Examples:
    image_path, images = _read(folder, f"{part}-images-idx3-ubyte")
    label_path, labels = _read(folder, f"{part}-labels-idx1-ubyte")
    if images.ndim != 3:
        raise DataError(
            f"{image_path}: holds an array of shape {images.shape}, images have three sizes; are files swapped?"
        )
    if labels.ndim != 1:
        raise DataError(
            f"{label_path}: holds an array of shape {labels.shape}, labels have one size; are files swapped?"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{label_path}: holds {len(labels)} labels for the {len(images)} images of {image_path.name}; "
            "fetch both again"
        )
    if labels.max() >= CLASSES:
        raise DataError(f"{label_path}: holds the label {labels.max()}, give labels from 0 to {CLASSES - 1}")
    return Examples(features=images, labels=labels.astype(np.int64), classes=CLASSES, scale=1 / 255)


def _read(folder: Path, stem: str) -> tuple[Path, NDArray[np.uint8]]:
    for name in (f"{stem}.gz", stem):
        if (folder / name).exists():
            return folder / name, read_idx(folder / name)
    raise DataError(
        f"{folder} has neither {stem}.gz nor {stem}: "
        f"give the folder with the four MNIST files, or run download_mnist({str(folder)!r})"
    )


def _verify(folder: Path, source: DownloadSource) -> None:
    for name, expected in source.checksums.items():
        try:
            checksum = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(
                f"{folder / name}: cannot be verified ({error.strerror}); give the original files"
            ) from error
        if checksum != expected:
            raise DataError(
                f"{folder / name}: not the original file (SHA-256 {checksum}); fetch it again, or load without verify"
            )
