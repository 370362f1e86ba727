"""Feature maps: what each client does to its own examples before the model sees them.

>>> from incrowd.data import load_digits
>>> from incrowd.learning.features import OrientedEnergies, UnitNorm, compose, transform
>>> general = compose(OrientedEnergies(octave=0, stride=2), UnitNorm(centred=True))
>>> transform(general, load_digits().train).shape
(128,)
"""

from incrowd.learning.features.encoder import from_callable, from_module
from incrowd.learning.features.energies import OrientedEnergies, SecondOrderEnergies
from incrowd.learning.features.feature_map import FeatureMap, compose
from incrowd.learning.features.made_up import MadeUpPictures
from incrowd.learning.features.mirrored import Mirrored
from incrowd.learning.features.norms import UnitNorm, WithConstant
from incrowd.learning.features.order import OwnPixels, PicturesOrPixels
from incrowd.learning.features.patches import PatchResponses
from incrowd.learning.features.pictures import ColourPictures, GreyPictures, is_picture
from incrowd.learning.features.pieces import Spread, TextBuckets, TextPieces, TokenGrams
from incrowd.learning.features.table_rows import TableRows
from incrowd.learning.features.transform import transform, transform_federated
from incrowd.learning.features.whitened import Whitened, picture_map

__all__ = [
    "ColourPictures",
    "FeatureMap",
    "GreyPictures",
    "MadeUpPictures",
    "Mirrored",
    "OrientedEnergies",
    "OwnPixels",
    "PatchResponses",
    "PicturesOrPixels",
    "SecondOrderEnergies",
    "Spread",
    "TableRows",
    "TextBuckets",
    "TextPieces",
    "TokenGrams",
    "UnitNorm",
    "Whitened",
    "WithConstant",
    "compose",
    "from_callable",
    "from_module",
    "is_picture",
    "picture_map",
    "transform",
    "transform_federated",
]
