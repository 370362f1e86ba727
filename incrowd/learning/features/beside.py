"""Two ways to look at an example, side by side."""

from dataclasses import dataclass

import numpy as np

from incrowd import _validate
from incrowd.learning.features.feature_map import FeatureMap, Values


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The features of `first` and those of `second` beside each other; the second have a `share` of the square of the
    length.

    Noise is equally strong in all features, so that a share says how much each way to look may bring, and what it may
    cost where it brings nothing. None has to be chosen, so that nobody is asked.

    Guarantee: where both have length one, so have they together.
    """

    first: FeatureMap
    second: FeatureMap
    share: float

    def __post_init__(self) -> None:
        _validate.positive(share=self.share)
        _validate.below_one(share=self.share)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"Beside({self.first.name}; {self.second.name}; {self.share})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        factors = np.sqrt([1 - self.share, self.share], dtype=np.float64).astype(np.float32)
        both: Values = np.concatenate([factors[0] * self.first(values), factors[1] * self.second(values)], axis=1)
        return both
