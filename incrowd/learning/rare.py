"""Features that are one number in nearly all of a client's examples, as pairs of what the others have beyond it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RARE = 1 / 8  # of the examples at most; measured: of more, matrix products are faster
_PAYS = 0.1  # of the features at least
_FEW = 16  # of so few examples the usual number is told from too little, and there is little to win
SMALL, LARGE = 2.0**-40, 2.0**10
"""Another usual number than 0 that is not between them is none: a step is multiplied by its square."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rare:
    """The rare features of n examples: example i has beyond what is usual ``values[begins[i]:begins[i + 1]]``.

    ``places`` say in which of the ``features``. All numbers are as they are meant. ``products`` [n] are those of an
    example's values with what is usual.
    """

    features: NDArray[np.int64]
    usual: NDArray[np.float32]
    begins: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float32]
    products: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return int(self.begins.nbytes + self.places.nbytes + self.values.nbytes + self.products.nbytes)


def moderate(numbers: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which numbers a feature's examples may have in common for it to be one with the bias."""
    size = np.abs(numbers)
    found: NDArray[np.bool_] = (size == 0) | ((size >= SMALL) & (size <= LARGE))
    return found


def rare_features(stored: NDArray[np.generic], used: NDArray[np.int64], *, scale: float, offset: float) -> Rare | None:
    """Those among the `used` features of examples stored [n, features], or None if too few are rare to pay.

    Guarantee: it follows from these examples alone, in their order. Bit for bit they are told apart from what is usual,
    and what is usual is a moderate number.

    Edge cases: what is usual is guessed from five of the examples and then counted in all, so that a guess that is off
    leaves a feature with the others.
    """
    if len(stored) < _FEW or not len(used):
        return None
    bits = stored.view(stored.dtype.str.replace("f", "u"))
    guess = np.sort(bits[np.linspace(0, len(bits) - 1, 5).astype(np.int64)], axis=0)[2]
    others = np.add.reduce(bits != guess, axis=0, dtype=np.uint16 if len(bits) < 2**16 else np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        usual = (guess.view(stored.dtype).astype(np.float64) * scale + offset).astype(np.float32)
    features = used[(others[used] <= _RARE * len(bits)) & moderate(usual[used])]
    if len(features) < _PAYS * len(used):
        return None
    own = bits.take(features, axis=1, mode="clip")  # which only saves a check
    there = np.flatnonzero(own != guess[features])  # of a matrix it is slower
    examples, places = np.divmod(there, len(features))
    beyond = own.reshape(-1)[there].view(stored.dtype).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = ((beyond - guess[features].view(stored.dtype)[places]) * scale).astype(np.float32)
        products = np.bincount(examples, usual[features][places] * values.astype(np.float64), len(bits))
        return Rare(
            features=features,
            usual=usual[features],
            begins=np.searchsorted(examples, np.arange(len(bits) + 1)),
            places=places,
            values=values,
            products=products.astype(np.float32),
        )
