"""What one client sends: one flat vector, whatever arrays it is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How named arrays lie in one flat vector, in the order of the names given.

    Guarantee: all arrays become one vector with one norm, so that several arrays cannot be clipped apart by accident;
    arrays of whole numbers and of truth values count like any other (they are converted to floating point).

    Edge cases: an array of size 0 takes no place; a missing, unknown or differently shaped array is refused.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes):
            raise ConfigError(field="shapes", value=self.shapes, remedy=f"give one shape for each of {self.names}")
        if len(set(self.names)) != len(self.names):
            raise ConfigError(field="names", value=self.names, remedy="give every array a name of its own")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "Layout":
        """The layout of these arrays."""
        return cls(names=tuple(arrays), shapes=tuple(np.shape(array) for array in arrays.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each array holds."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """How many numbers the flat vector holds."""
        return sum(self.sizes)

    def flatten(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        """The arrays as one vector."""
        if set(arrays) != set(self.names):
            odd = sorted(set(arrays) ^ set(self.names))
            raise DataError(f"a contribution has other arrays than its layout: {odd}; send exactly {list(self.names)}")
        vector = np.empty(self.size)
        for name, shape, part in zip(self.names, self.shapes, self._parts(vector), strict=True):
            if np.shape(arrays[name]) != shape:
                raise DataError(f"array {name!r} has shape {np.shape(arrays[name])}; its layout says {shape}")
            part[:] = np.ravel(arrays[name])
        return vector

    def unflatten(self, vector: Floats) -> dict[str, Floats]:
        """The vector as named arrays (views, not copies)."""
        if vector.shape != (self.size,):
            raise DataError(f"a vector of shape {vector.shape} does not fit a layout of {self.size} numbers")
        parts = zip(self.names, self._parts(vector), self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in parts}

    def _parts(self, vector: Floats) -> list[Floats]:
        return np.split(vector, np.cumsum(self.sizes)[:-1]) if self.names else []
