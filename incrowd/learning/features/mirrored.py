"""Pictures seen as they are and in a mirror: photographs of the same things."""

from dataclasses import dataclass

import numpy as np

from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.learning.features.images import as_tensor
from incrowd.learning.features.pictures import channels_first


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """The mean of the features of a picture and of its mirror image, left for right.

    What a photograph shows does not change in a mirror, so half of what could be told of it means nothing; without
    that half, as many numbers tell more. Letters and digits do change: their features are not for this.

    Guarantee: a picture and its mirror image have the same features, bit for bit.
    """

    base: FeatureMap

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"Mirrored({self.base.name})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = channels_first(as_tensor(values)).contiguous()
        found: Values = (self.base(pictures.numpy()) + self.base(pictures.flip(3).numpy())) * np.float32(0.5)
        return found
