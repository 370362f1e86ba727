"""Sets that are made up, on which raw pixels are good: what priors about pictures may lose.

| set | what it is |
| --- | --- |
| `spot-places` | a spot on black; the class is the quadrant that it lies in |
| `spot-sides` | a light spot on grey noise, in colours; the class is whether it lies on the left or the right |
| `templates` | ten smooth templates, each beneath smooth noise of 2.5 times its strength |
| `levels` | a level a row, by the class and by chance |
| `grain` | a pattern of single pixels for each class, faint beneath smooth noise, 64 pixels a side |
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data import Examples, Split

Pictures = NDArray[np.float64]

_TRAIN, _TEST = 3000, 1000
_COUNT = _TRAIN + _TEST
_SIDE, _LARGE = 28, 64


def _split(name: str, classes: int, make: Callable[[Any, np.random.Generator], Pictures]) -> Callable[[Path], Split]:
    def load(_folder: Path) -> Split:
        generator = np.random.default_rng(0)
        labels = generator.integers(0, classes, _COUNT)
        pictures = np.clip(make(labels, generator), 0, 1).astype(np.float32)
        parts = [
            Examples(features=pictures[some], labels=labels[some], classes=classes)
            for some in (slice(_TRAIN), slice(_TRAIN, None))
        ]
        return Split(name=name, train=parts[0], test=parts[1])

    return load


def _spots(rows: Pictures, columns: Pictures, *, side: int, width: float) -> Pictures:
    y, x = np.mgrid[:side, :side]
    squares = (y - rows[:, None, None]) ** 2 + (x - columns[:, None, None]) ** 2
    spots: Pictures = np.exp(-squares / (2 * width**2))
    return spots


def _places(labels: Any, generator: np.random.Generator) -> Pictures:
    rows, columns = (8 + 12 * one + generator.normal(0, 1, _COUNT) for one in (labels // 2, labels % 2))
    return _spots(rows, columns, side=_SIDE, width=2)


def _sides(labels: Any, generator: np.random.Generator) -> Pictures:
    rows, columns = generator.uniform(3, 13, _COUNT), 4 + 7 * labels + generator.normal(0, 1, _COUNT)
    light = generator.uniform(0.25, 0.5, (_COUNT, 3, 1, 1))
    noise = generator.normal(0.4, 0.05, (_COUNT, 3, 16, 16))
    found: Pictures = noise + light * _spots(rows, columns, side=16, width=3**0.5)[:, None]
    return found


def _templates(labels: Any, generator: np.random.Generator) -> Pictures:
    templates, noise = _smooth(10, generator), _smooth(_COUNT, generator)
    found: Pictures = 0.5 + 0.12 * (templates[labels] + 2.5 * noise)
    return found


def _levels(labels: Any, generator: np.random.Generator) -> Pictures:
    of_class = generator.normal(size=(10, _SIDE, 1))[labels]
    of_row, of_pixel = (generator.normal(size=(_COUNT, _SIDE, many)) for many in (1, _SIDE))
    found: Pictures = 0.5 + 0.1 * (of_class + 1.5 * of_row + 0.5 * of_pixel)
    return found


def _grain(labels: Any, generator: np.random.Generator) -> Pictures:
    patterns = generator.choice([-1, 1], (10, _LARGE, _LARGE))[labels]
    of_pixel = generator.normal(size=(_COUNT, _LARGE, _LARGE))
    found: Pictures = 0.5 + 0.1 * (_smooth(_COUNT, generator, side=_LARGE) + 0.2 * (patterns + of_pixel))
    return found


def _smooth(count: int, generator: np.random.Generator, *, side: int = _SIDE) -> Pictures:
    """Pictures of noise without fine detail, of standard deviation 1."""
    frequencies = np.fft.fftfreq(side)
    kept = np.exp(-((9 * np.hypot(frequencies[:, None], frequencies)) ** 2) / 2)
    smooth = np.fft.ifft2(np.fft.fft2(generator.normal(size=(count, side, side))) * kept).real
    found: Pictures = smooth / smooth.std(axis=(1, 2), keepdims=True)
    return found


MADE_UP: dict[str, Callable[[Path], Split]] = {
    "spot-places": _split("spot-places", 4, _places),
    "spot-sides": _split("spot-sides", 2, _sides),
    "templates": _split("templates", 10, _templates),
    "levels": _split("levels", 10, _levels),
    "grain": _split("grain", 10, _grain),
}
