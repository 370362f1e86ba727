"""Features of length one."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from incrowd import _validate
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.images import as_tensor

_TINY = 1e-6
_ROUNDED = 1e-5  # of the length of a row: far more than float32 loses of a mean, far less than anything shows


@dataclass(frozen=True, kw_only=True)
class UnitNorm:
    """Each example as a flat vector of L2 norm 1; with `centred`, its own mean is taken from its features before.

    Edge cases: features that are all zero (with `centred`, all the same) stay zero; those whose length float32 cannot
    hold, from 1e19 on, become zero.
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
            features = less_mean(features)
        scaled: Values = unit(features).numpy()
        return scaled


@dataclass(frozen=True, kw_only=True)
class WithConstant:
    """One more feature, the same for every example: a linear model's bias, whose share of a contribution it sets."""

    value: float = 0.1

    def __post_init__(self) -> None:
        _validate.positive(constant=self.value)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features = values.reshape(len(values), -1)
        return np.concatenate([features, np.full((len(features), 1), self.value, np.float32)], axis=1)


def less_mean(rows: Tensor) -> Tensor:
    """Rows less their own mean; those that are the same throughout become zeros, not what rounding leaves of them."""
    left = rows - rows.mean(dim=1, keepdim=True)
    left[left.norm(dim=1) <= _ROUNDED * rows.norm(dim=1)] = 0
    return left


def unit(features: Tensor) -> Tensor:
    """Rows of L2 norm 1; a row of zeros stays as it is.

    A row whose length float32 cannot hold becomes zeros: an error would tell of one example to whoever hears of it.
    """
    scaled: Tensor = (features / (features.norm(dim=1, keepdim=True) + _TINY)).nan_to_num_(nan=0.0)
    return scaled
