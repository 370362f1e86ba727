"""How contributions are bounded, added up and noised."""

from incrowd.privacy.mechanism.chosen_direction import ChosenDirection
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
)
from incrowd.privacy.mechanism.contribution import Layout
from incrowd.privacy.mechanism.correlated import CorrelatedNoise
from incrowd.privacy.mechanism.device import Contribution, Mechanism
from incrowd.privacy.mechanism.factorisation import Participation, StrategyMatrix, optimal_banded, optimal_blt
from incrowd.privacy.mechanism.noise import GaussianNoise, LaplaceNoise
from incrowd.privacy.mechanism.steps import RecordTraining

__all__ = [
    "ChosenDirection",
    "Clip",
    "ClippedSum",
    "Contribution",
    "CorrelatedNoise",
    "ElementwiseClip",
    "FixedClip",
    "GaussianNoise",
    "LaplaceNoise",
    "Layout",
    "Mechanism",
    "MedianClip",
    "NormalisedClip",
    "Participation",
    "PerLayerClip",
    "QuantileClip",
    "RecordTraining",
    "StrategyMatrix",
    "optimal_banded",
    "optimal_blt",
]
