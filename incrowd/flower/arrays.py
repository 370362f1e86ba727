"""Arrays as Flower carries them, as one vector and back; those that come from nodes are read without trusting them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.clipping import Layout

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord


@dataclass(frozen=True, kw_only=True)
class NamedArrays:
    """The arrays of a model: how they lie in one vector, and the vector.

    Edge cases: arrays of anything but floating point numbers, and numbers that are not finite, are refused.
    """

    layout: Layout
    dtypes: tuple[np.dtype[Any], ...]
    vector: Floats = field(repr=False)

    @classmethod
    def of(cls, record: "ArrayRecord") -> "NamedArrays":
        """What the program itself gave."""
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                remedy = (
                    "only floating point numbers are clipped and noised: leave counters and other whole numbers at "
                    "the nodes, and out of what is sent (for num_batches_tracked: use a group norm)"
                )
                raise ConfigError(field=f"arrays[{name!r}]", value=str(array.dtype), remedy=remedy)
        layout = Layout.of(arrays)
        if layout.size == 0:
            raise ConfigError(field="arrays", value=list(arrays), remedy="give a model that has weights")
        vector = layout.flatten(arrays)
        if not np.isfinite(vector).all():
            raise ConfigError(field="arrays", value="not finite", remedy="begin with weights that are numbers")
        return cls(layout=layout, dtypes=tuple(array.dtype for array in arrays.values()), vector=vector)

    def moved(self, mean: Floats) -> "ArrayRecord":
        """These arrays and a mean, as Flower carries them."""
        from flwr.app import Array, ArrayRecord

        named = self.layout.unflatten(self.vector + mean)
        kinds = zip(named.items(), self.dtypes, strict=True)
        return ArrayRecord({name: Array(np.asarray(array, dtype)) for (name, array), dtype in kinds})

    def difference(self, record: "ArrayRecord") -> Floats | None:
        """How far a node's arrays are from these; None where they are not arrays of these names and shapes.

        Guarantee: no more memory is taken than the bytes that came and the vector.
        """
        if set(record) != set(self.layout.names):
            return None
        arrays = {
            name: values_in(record[name], shape)
            for name, shape in zip(self.layout.names, self.layout.shapes, strict=True)
        }
        found = {name: array for name, array in arrays.items() if array is not None}
        return None if len(found) < len(arrays) else self._from_here(found)

    def _from_here(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as zero
            return self.layout.flatten(arrays) - self.vector


def values_in(array: "Array", shape: tuple[int, ...]) -> NDArray[Any] | None:
    """A node's array; None where it is not one of floating point numbers of this shape.

    Guarantee: what came is never evaluated, and not copied.
    """
    data = array.data
    if array.stype != "numpy.ndarray" or len(data) > math.prod(shape) * _WIDEST + _LONGEST_HEADER:
        return None
    header = _HEADER.match(data[:_LONGEST_HEADER])
    if header is None or header.end() != int.from_bytes(header["length"], "little") + header.end("length"):
        return None
    if tuple(map(int, _NUMBER.findall(header["shape"]))) != shape:
        return None
    dtype = np.dtype(header["dtype"].decode())
    if len(data) - header.end() != math.prod(shape) * dtype.itemsize:
        return None
    values = np.frombuffer(data, dtype, offset=header.end())
    return values.reshape(shape, order="F" if header["order"] == b"True" else "C")


_WIDEST = np.dtype(np.longdouble).itemsize
_LONGEST_HEADER = 1024
_NUMBER = re.compile(rb"\d{1,18}")
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)"
    rb"\{'descr': '(?P<dtype>[<>](?:f2|f4|f8|f16))', 'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>[\d, ]*)\), ?\} *\n",
    re.DOTALL,
)
"""How NumPy begins an array of floating point numbers: version 1.0 of its format, always."""
