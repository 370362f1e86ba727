"""Two ways to look at an example, side by side."""

from dataclasses import dataclass

import numpy as np

from incrowd import _validate
from incrowd.learning.features.feature_map import FeatureMap, Values


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The features of `first` and those of `second` beside each other; the second have a `share` of the square of the
    length of an example, times what `suits` says of it, a number from 0 to 1 [n, 1].

    Noise is equally strong in all features, so that a share says how much each way to look may bring, and what it may
    cost where it brings nothing. Each example decides for itself, so that nobody has to be asked.

    Guarantee: where both have length one, so have they together.
    """

    first: FeatureMap
    second: FeatureMap
    share: float
    suits: FeatureMap

    def __post_init__(self) -> None:
        _validate.positive(share=self.share)
        _validate.below_one(share=self.share)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"Beside({self.first.name}; {self.second.name}; {self.suits.name}, {self.share})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        share = np.float32(self.share) * self.suits(values)
        both: Values = np.concatenate(
            [np.sqrt(1 - share) * self.first(values), np.sqrt(share) * self.second(values)], 1
        )
        return both
