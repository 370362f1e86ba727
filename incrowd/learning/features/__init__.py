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
from incrowd.learning.features.glyphs import Glyphs
from incrowd.learning.features.metric import GlyphMetric
from incrowd.learning.features.moments import MomentNormalisation
from incrowd.learning.features.norms import UnitNorm, WithConstant
from incrowd.learning.features.transform import transform, transform_federated

__all__ = [
    "FeatureMap",
    "GlyphMetric",
    "Glyphs",
    "MomentNormalisation",
    "OrientedEnergies",
    "SecondOrderEnergies",
    "UnitNorm",
    "WithConstant",
    "compose",
    "from_callable",
    "from_module",
    "transform",
    "transform_federated",
]
