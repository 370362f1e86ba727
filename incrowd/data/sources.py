"""Data sets in files: the embedded digits, MNIST's four files, and a folder of pictures."""

import gzip
import importlib
import math
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.data.examples import Examples, Split, hold_out
from incrowd.errors import DataError

CLASSES = 10
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")

_AGAIN = "fetch the file again"
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def load_digits() -> Split:
    """1,797 real handwritten digits as [N, 8, 8] bytes that mean ``byte / 16``; they come with scikit-learn.

    Guarantee: the same digits are held out for the test every time.
    """
    images, labels = _digits()
    examples = Examples(features=images.copy(), labels=labels.copy(), classes=CLASSES, scale=1 / 16)
    return hold_out(examples, name="digits", test_examples=297, randomness=SeededRandomness(seed=0))


@cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn import datasets

    digits = datasets.load_digits()
    return np.ascontiguousarray(digits.images, np.uint8), digits.target.astype(np.int64)


def load_mnist(folder: Path | str) -> Split:
    """MNIST, or a data set in the same four files, as [N, 28, 28] bytes that mean ``byte / 255``."""
    return Split(name="mnist", train=_mnist(Path(folder), "train"), test=_mnist(Path(folder), "t10k"))


def _mnist(folder: Path, part: str) -> Examples:
    image_path, images = _named(folder, f"{part}-images-idx3-ubyte")
    label_path, labels = _named(folder, f"{part}-labels-idx1-ubyte")
    for path, array, sizes in ((image_path, images, 3), (label_path, labels, 1)):
        if array.ndim != sizes:
            raise DataError(f"{path}: holds an array of shape {array.shape}, give {sizes} sizes; are files swapped?")
    if len(images) != len(labels):
        raise DataError(f"{label_path}: holds {len(labels)} labels for {len(images)} images; fetch both files again")
    if labels.max() >= CLASSES:
        raise DataError(f"{label_path}: holds the label {labels.max()}, give labels from 0 to {CLASSES - 1}")
    return Examples(features=images, labels=labels.astype(np.int64), classes=CLASSES, scale=1 / 255)


def _named(folder: Path, stem: str) -> tuple[Path, NDArray[np.uint8]]:
    for name in (f"{stem}.gz", stem):
        if (folder / name).exists():
            return folder / name, read_idx(folder / name)
    remedy = f"give the folder with the four MNIST files, from {_MIRROR}"
    raise DataError(f"{folder} has neither {stem}.gz nor {stem}: {remedy}")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, plain or gzipped."""
    try:
        stored = path.read_bytes()
        payload = bytearray(gzip.decompress(stored) if stored.startswith(b"\x1f\x8b") else stored)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken or truncated gzip ({error}); {_AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
    if len(payload) < 4 or payload[:3] != b"\0\0\x08":
        raise DataError(f"{path}: no IDX file of unsigned bytes, it starts with {bytes(payload[:4])!r}; {_AGAIN}")
    start = 4 + 4 * payload[3]
    shape = [int.from_bytes(payload[at : at + 4], "big") for at in range(4, start, 4)]
    if not shape or 0 in shape or len(payload) - start != math.prod(shape):
        raise DataError(f"{path}: holds {len(payload) - start} values where its header says {shape}; {_AGAIN}")
    return np.frombuffer(payload, np.uint8, offset=start).reshape(shape)


def read_pictures(folder: Path | str, *, owners: bool) -> tuple[NDArray[np.uint8], list[str], list[str]]:
    """The pictures [N, channels, height, width] in CLASS/FILE or OWNER/CLASS/FILE, with their classes and owners."""
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise DataError(f"{folder}: pictures need Pillow; run pip install pillow") from error
    pattern = "*/*/*" if owners else "*/*"
    paths = sorted(path for path in Path(folder).glob(pattern) if path.suffix.lower() in PICTURES)
    pictures = []
    for path in paths:
        try:
            with image.open(path) as opened:
                pixels = np.asarray(opened.convert("L" if opened.mode in ("1", "L") else "RGB"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as a picture ({error}); {_AGAIN}") from error
        pictures.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
        if pictures[-1].shape != pictures[0].shape:
            shapes = f"{pictures[-1].shape}, and {paths[0].name} {pictures[0].shape}"
            raise DataError(f"{path}: has the shape {shapes}: bring all pictures to one size and mode")
    if not pictures:
        where = "OWNER/CLASS" if owners else "CLASS"
        raise DataError(f"{folder}: has no pictures; put files ({', '.join(PICTURES)}) into {where} folders")
    whose = [path.parts[-3] if owners else str(path.relative_to(folder)) for path in paths]
    return np.stack(pictures), [path.parent.name for path in paths], whose
