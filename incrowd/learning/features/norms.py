"""Features of length one."""

from dataclasses import dataclass

from torch import Tensor

from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.images import as_tensor

_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class UnitNorm:
    """Each example as a flat vector of L2 norm 1; with `centred`, its own mean is taken from its features before.

    Edge cases: features that are all zero (with `centred`, all the same) stay zero.
    """

    centred: bool = False

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features = as_tensor(values).flatten(1)
        if self.centred:
            features = features - features.mean(dim=1, keepdim=True)
        scaled: Values = unit(features).numpy()
        return scaled


def unit(features: Tensor) -> Tensor:
    """Rows of L2 norm 1; a row of zeros stays as it is."""
    scaled: Tensor = features / (features.norm(dim=1, keepdim=True) + _TINY)
    return scaled
