"""Pictures whose pixels are not between 0 and 1, stretched onto that."""

import torch
from torch import Tensor

_BEYOND = 0.25
"""By so much pixels may leave 0 to 1: what was resized does, a little, and means what it did."""


def stretched(pictures: Tensor) -> Tensor:
    """Pictures [n, ...], each as it is, or, if a pixel is far from 0 to 1, its least number moved to 0 and its largest
    to 1: bytes, pixels of mean 0, pixels of mean 0 and variance 1 in each colour are meant like that.

    Guarantee: each picture decides for itself.

    Edge cases: one whose pixels are all the same becomes 0; one with a pixel that is no number, or endless, stays.
    """
    flat = pictures.flatten(1)
    least, largest = flat.amin(1), flat.amax(1)
    far = ((least < -_BEYOND) | (largest > 1 + _BEYOND)) & (least.isfinite() & largest.isfinite())
    if not far.any():
        return pictures
    some, low, high = flat[far] / 2, least[far, None] / 2, largest[far, None] / 2  # the range of half of it is finite
    result = flat.clone()
    result[far] = (some - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    return result.view(pictures.shape)
