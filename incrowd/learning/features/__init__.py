"""Feature maps: functions that each client applies to its own examples before the model sees them.

>>> from incrowd.data import load_digits
>>> from incrowd.learning.features import OrientedEnergies, UnitNorm, compose, transform
>>> general = compose(OrientedEnergies(octave=0, stride=2), UnitNorm(centred=True))
>>> transform(general, load_digits().train).shape
(128,)
"""

from incrowd.learning.features.energies import OrientedEnergies, SecondOrderEnergies
from incrowd.learning.features.feature_map import UnitNorm, WithConstant, compose, from_callable, from_module
from incrowd.learning.features.patches import MadeUpPictures, PatchResponses
from incrowd.learning.features.pictures import (
    ColourPictures,
    GreyPictures,
    Whitened,
    WithPixels,
    is_picture,
    picture_map,
)
from incrowd.learning.features.pieces import Spread, TextBuckets, TextPieces, TokenGrams
from incrowd.learning.features.table_rows import TableRows
from incrowd.learning.features.transform import transform, transform_federated
from incrowd.types import FeatureMap

__all__ = [
    "ColourPictures",
    "FeatureMap",
    "GreyPictures",
    "MadeUpPictures",
    "OrientedEnergies",
    "PatchResponses",
    "SecondOrderEnergies",
    "Spread",
    "TableRows",
    "TextBuckets",
    "TextPieces",
    "TokenGrams",
    "UnitNorm",
    "Whitened",
    "WithConstant",
    "WithPixels",
    "compose",
    "from_callable",
    "from_module",
    "is_picture",
    "picture_map",
    "transform",
    "transform_federated",
]
