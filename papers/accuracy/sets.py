"""The data sets by name: as they are, and changed in ways that a prior may not expect.

| set | what it is |
| --- | --- |
| `mnist`, `fashion` | 60,000 + 10,000 grey images in the four IDX files, in a folder of that name |
| `cifar10` | 50,000 + 10,000 colour images, JPEG files end to end in `train.npz` and `test.npz` |
| `cifar10-grey` | their brightness |
| `mnist-inverted` | black on white |
| `mnist-shifted` | each digit 4 pixels off, in a direction of its own |
| `mnist-noise` | noise of up to half the brightness behind each digit |
| `mnist-permuted` | the pixels in another order, the same for all |
| `letters` | the capitals A to J of the fonts that matplotlib brings, turned, slanted and moved |
| `adult` | a census table of 25,000 rows, the ranges and levels of its columns stated |
| `adult-raw` | its six numbers as they are |

Beside them those of `papers.accuracy.made_up_sets`.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from harness import checks
from incrowd import DataError
from incrowd.data import Columns, Examples, Split, load_mnist, read_table
from papers.accuracy.made_up_sets import MADE_UP

Pixels = NDArray[np.uint8]

_BYTE = 1 / 255
_LETTERS = "ABCDEFGHIJ"
_EACH = (3000, 500)  # training and test images of a letter
_SHIFT = 4


def load_set(name: str, folder: Path) -> Split:
    """A data set from a folder that holds those that are not made up.

    Edge cases: an unknown name, or files that are not there: refused by name.
    """
    checks.known(SETS, data_set=name)
    return SETS[name](folder)


def _idx(name: str) -> Callable[[Path], Split]:
    def load(folder: Path) -> Split:
        split = load_mnist(folder / name)
        return Split(name=name, train=split.train, test=split.test)

    return load


def _mnist_changed(name: str, change: Callable[[Pixels, np.random.Generator], Pixels]) -> Callable[[Path], Split]:
    def load(folder: Path) -> Split:
        split, generator = load_mnist(folder / "mnist"), np.random.default_rng(0)
        parts = [split.train, split.test]
        made = [_pixels(change(np.asarray(one.features), generator), one) for one in parts if one is not None]
        return Split(name=name, train=made[0], test=made[1])

    return load


def _pixels(images: Pixels, like: Examples) -> Examples:
    return Examples(features=np.ascontiguousarray(images), labels=like.labels, classes=like.classes, scale=_BYTE)


def _inverted(images: Pixels, _generator: np.random.Generator) -> Pixels:
    return 255 - images


def _shifted(images: Pixels, generator: np.random.Generator) -> Pixels:
    """Each image by 4 pixels up, down, left or right."""
    wide = np.pad(images, ((0, 0), (_SHIFT, _SHIFT), (_SHIFT, _SHIFT)))
    height, width = images.shape[1:]
    starts = np.array([(0, 1), (2, 1), (1, 0), (1, 2)])[generator.integers(0, 4, len(images))] * _SHIFT
    rows = starts[:, :1] + np.arange(height)
    columns = starts[:, 1:] + np.arange(width)
    found: Pixels = wide[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
    return found


def _noisy(images: Pixels, generator: np.random.Generator) -> Pixels:
    return np.maximum(images, generator.integers(0, 128, images.shape, dtype=np.uint8))


def _permuted(images: Pixels, _generator: np.random.Generator) -> Pixels:
    order = np.random.default_rng(1).permutation(images[0].size)
    return images.reshape(len(images), -1)[:, order].reshape(images.shape)


def _cifar(folder: Path) -> Split:
    train, test = (_jpegs(folder / "cifar10" / f"{part}.npz") for part in ("train", "test"))
    return Split(name="cifar10", train=train, test=test)


def _cifar_grey(folder: Path) -> Split:
    split = _cifar(folder)
    parts = [one for one in (split.train, split.test) if one is not None]
    weights = np.array([0.3, 0.59, 0.11])
    made = [_pixels(np.rint(np.einsum("nchw,c->nhw", one.features, weights)).astype(np.uint8), one) for one in parts]
    return Split(name="cifar10-grey", train=made[0], test=made[1])


def _jpegs(path: Path) -> Examples:
    """Images [n, 3, h, w] of JPEG files that lie end to end."""
    try:
        stored = np.load(path)
        files, ends, labels = stored["jpeg"].tobytes(), stored["ends"], stored["labels"]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path}: give a file with the arrays jpeg, ends and labels ({error})") from error
    starts = [0, *ends[:-1]]
    images: list[Any] = [
        np.asarray(Image.open(io.BytesIO(files[begin:end])).convert("RGB"))
        for begin, end in zip(starts, ends, strict=True)
    ]
    features = np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
    return Examples(features=features, labels=labels.astype(np.int64), classes=10, scale=_BYTE)


def _letters(_folder: Path) -> Split:
    """Drawn anew each time, in some seconds; no font is in both parts."""
    from matplotlib import get_data_path

    files = sorted(Path(get_data_path(), "fonts", "ttf").glob("*.ttf"))
    kinds = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmb", "cmr", "cmss", "cmtt")
    fonts = [path for path in files if path.stem.startswith(kinds) and "Display" not in path.stem]
    generator = np.random.default_rng(0)
    train = _drawn([path for place, path in enumerate(fonts) if place % 4], _EACH[0], generator)
    test = _drawn(fonts[::4], _EACH[1], generator)
    return Split(name="letters", train=train, test=test)


def _drawn(fonts: list[Path], each: int, generator: np.random.Generator) -> Examples:
    large = {path: ImageFont.truetype(str(path), 40) for path in fonts}
    images, labels = [], []
    for label, letter in enumerate(_LETTERS):
        for _ in range(each):
            images.append(_letter(letter, large[fonts[generator.integers(len(fonts))]], generator))
            labels.append(label)
    order = generator.permutation(len(labels))
    features = np.stack(images)[order]
    return Examples(
        features=np.ascontiguousarray(features), labels=np.array(labels)[order], classes=len(_LETTERS), scale=_BYTE
    )


def _letter(letter: str, font: ImageFont.FreeTypeFont, generator: np.random.Generator) -> Pixels:
    """A letter of 28 x 28 pixels, white on black, turned, slanted, scaled and moved a little."""
    canvas = Image.new("L", (56, 56))
    ImageDraw.Draw(canvas).text((28, 28), letter, font=font, fill=255, anchor="mm")
    angle, shear = generator.normal(0, 0.12), generator.normal(0, 0.15)
    size, (dx, dy) = 2 * np.exp(generator.normal(0, 0.1)), generator.normal(0, 2, 2)
    matrix = size * np.array([[np.cos(angle), shear - np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    offset = 28 + np.array([dx, dy]) - matrix @ [14, 14]
    terms = (matrix[0, 0], matrix[0, 1], offset[0], matrix[1, 0], matrix[1, 1], offset[1])
    seen = canvas.transform((28, 28), Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR)
    return np.asarray(seen, np.uint8)


_ADULT = Columns(
    client="",
    label="income",
    classes=("<=50K", ">50K"),
    schema={
        "age": {"range": [15, 95], "knots": 9},
        "workclass": {
            "levels": [
                "Federal-gov", "Local-gov", "Never-worked", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov",
                "Without-pay",
            ],
            "other": True,
        },
        "fnlwgt": "ignore",
        "education": "ignore",  # in words what education_num says
        "education_num": {"range": [1, 16], "knots": 6},
        "marital_status": {
            "levels": [
                "Divorced", "Married-AF-spouse", "Married-civ-spouse", "Married-spouse-absent", "Never-married",
                "Separated", "Widowed",
            ]
        },
        "occupation": {
            "levels": [
                "Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing",
                "Handlers-cleaners", "Machine-op-inspct", "Other-service", "Priv-house-serv", "Prof-specialty",
                "Protective-serv", "Sales", "Tech-support", "Transport-moving",
            ],
            "other": True,
        },
        "relationship": {
            "levels": ["Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife"]
        },
        "race": {"levels": ["Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"]},
        "sex": {"levels": ["Female", "Male"]},
        "capital_gain": {"range": [0, 100000], "log": True, "knots": 4},
        "capital_loss": {"range": [0, 5000], "log": True, "knots": 4},
        "hours_per_week": {"range": [0, 100], "knots": 6},
        "native_country": {"levels": ["United-States", "Mexico"], "other": True},
    },
)  # fmt: skip
"""What everybody may know of a census form: ages, grades, hours, sums."""


TABLES: dict[str, Columns] = {"adult": _ADULT.resolved(())}
"""What the columns of a set mean, where that is stated."""


def _adult(folder: Path) -> Split:
    """Census income, the last fifth of the rows for testing."""
    return _last_fifth("adult", read_table(folder / "adult" / "adult.csv.gz", _ADULT)[0])


def _adult_raw(folder: Path) -> Split:
    """Its numbers as they are, as a newcomer would give them."""
    numbers = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
    columns = Columns(client="", label="income", classes=_ADULT.classes, features=numbers)
    return _last_fifth("adult-raw", read_table(folder / "adult" / "adult.csv.gz", columns)[0])


def _last_fifth(name: str, rows: Examples) -> Split:
    kept = len(rows) - len(rows) // 5
    return Split(name=name, train=rows.some(slice(kept)), test=rows.some(slice(kept, None)))


SETS: dict[str, Callable[[Path], Split]] = {
    "mnist": _idx("mnist"),
    "fashion": _idx("fashion"),
    "cifar10": _cifar,
    "cifar10-grey": _cifar_grey,
    "mnist-inverted": _mnist_changed("mnist-inverted", _inverted),
    "mnist-shifted": _mnist_changed("mnist-shifted", _shifted),
    "mnist-noise": _mnist_changed("mnist-noise", _noisy),
    "mnist-permuted": _mnist_changed("mnist-permuted", _permuted),
    "letters": _letters,
    "adult": _adult,
    "adult-raw": _adult_raw,
    **MADE_UP,
}
