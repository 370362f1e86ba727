"""Examples as images, whichever way they are given."""

import math

import numpy as np
import torch
from torch import Tensor

from incrowd import _validate
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features.feature_map import Values

Shape = tuple[int, int]


def check_shape(shape: Shape | None) -> None:
    """Refuse what is not a height and a width."""
    if shape is not None:
        if len(shape) != 2:
            raise ConfigError(field="shape", value=shape, remedy="give the height and the width of an image")
        _validate.count(height=shape[0], width=shape[1])


def as_images(values: Values, shape: Shape | None) -> Tensor:
    """A tensor [n, height, width] over the same memory where it can be.

    Edge cases: one channel [n, 1, height, width] is dropped; flat examples need the shape; colours are a `DataError`.
    """
    found = values.shape[1:]
    if shape is None:
        shape = found[-2:] if len(found) == 2 or (len(found) == 3 and found[0] == 1) else None
    if shape is None:
        raise DataError(
            f"examples of the shape {found} are not grey images: state shape=(height, width) for flat ones, "
            "turn colours into grey values"
        )
    if math.prod(found) != math.prod(shape):
        raise DataError(f"examples have the shape {found}: an image of {shape} has {math.prod(shape)} pixels")
    return as_tensor(values).view(-1, *shape)


def as_tensor(values: Values) -> Tensor:
    """A float32 tensor over the same memory, or over a copy if the array is read-only or not contiguous."""
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
