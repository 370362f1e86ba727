"""Clipping as a textbook writes it, one contribution at a time: what the fast ways are held against."""

import numpy as np

from incrowd._random import Floats
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, NormalisedClip, PerLayerClip


def clipped(clip: Clip, row: Floats) -> Floats:
    """A contribution as it may enter a sum; one that is not finite counts as zero."""
    if not np.isfinite(row).all():
        return np.zeros_like(row)
    if isinstance(clip, ElementwiseClip):
        return np.clip(row, -clip.limit, clip.limit)
    return np.concatenate([_part(clip, part, bound) for part, bound in parts(clip, row)])


def parts(clip: Clip, row: Floats) -> list[tuple[Floats, float]]:
    """The parts of a contribution that are bounded by themselves, each with its bound."""
    if isinstance(clip, PerLayerClip):
        return list(zip(np.split(row, np.cumsum(clip.parts)[:-1]), clip.clip_norms, strict=True))
    return [(row, clip.clip_norm)]


def length(clip: Clip, row: Floats) -> float:
    """How long a contribution is in its bounds: 1 is what may enter, of the part that is longest."""
    if isinstance(clip, ElementwiseClip):
        return float(np.abs(row).max() / clip.limit)
    return max(float(np.linalg.norm(part)) / bound for part, bound in parts(clip, row))


def _part(clip: Clip, part: Floats, bound: float) -> Floats:
    largest = float(np.abs(part).max(initial=0.0))
    if largest < 1e-280:
        return np.zeros_like(part)
    norm = float(np.linalg.norm(part / largest)) * largest if largest < 1e150 else np.inf
    if norm == np.inf:
        return part / largest / float(np.linalg.norm(part / largest)) * bound
    scaled: Floats = part * (bound / norm if isinstance(clip, NormalisedClip) else min(1.0, bound / norm))
    return scaled
