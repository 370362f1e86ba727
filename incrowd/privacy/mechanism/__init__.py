"""Bounds on contributions, their sum, and its noise."""

from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, Layout, MedianClip, PerLayerClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise
from incrowd.privacy.mechanism.device import Contribution, Mechanism
from incrowd.privacy.mechanism.grid import GaussianNoise, RecordTraining, Whole
from incrowd.privacy.mechanism.shared import SharedNoise
from incrowd.privacy.mechanism.whole_noise import ChosenDirection

__all__ = [
    "ChosenDirection",
    "Clip",
    "ClippedSum",
    "Contribution",
    "CorrelatedNoise",
    "ElementwiseClip",
    "GaussianNoise",
    "Layout",
    "Mechanism",
    "MedianClip",
    "PerLayerClip",
    "RecordTraining",
    "SharedNoise",
    "Whole",
]
