"""A metric for handwriting that was learnt from random drawings."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.linalg
import torch

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.features import cache as disk
from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.learning.features.glyphs import Glyphs
from incrowd.learning.features.images import Shape, as_tensor, check_shape
from incrowd.learning.features.norms import unit
from incrowd.learning.features.transform import evaluate

_BLOCK = 40  # glyphs whose features are held at a time


@dataclass(frozen=True, kw_only=True)
class GlyphMetric:
    """The features of `base`, seen along the `dimensions` directions that tell pseudo-glyphs apart best; L2 norm 1.

    How the renderings of one glyph differ stands for how people's hands differ (covariance W); how glyphs differ stands
    for what there is to tell apart (covariance B). The directions v maximise v'Bv / v'Sv, where
    S = W + ridge * mean variance in W * identity, and v'Sv = 1; features are centred at the mean glyph. This is linear
    discriminant analysis of data that nobody owns: no example of any client is used, so it costs no privacy. It
    is knowledge about handwriting all the same: say so in comparisons.

    The first use learns the directions, which takes seconds (for 3969 features, a minute); with `cache`, a folder, they
    are kept.

    Guarantee: the same settings give the same features on one machine.

    Edge cases: on machines with other linear algebra the last digits can differ, and two directions of almost the same
    worth can be mixed differently. Where clients compute the map themselves, send them `centre` and `directions`.
    """

    base: FeatureMap
    shape: Shape = (28, 28)
    dimensions: int = 64
    glyphs: Glyphs = field(default_factory=Glyphs)
    ridge: float = 1.0
    cache: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_shape(self.shape)
        _validate.count(dimensions=self.dimensions)
        _validate.positive(ridge=self.ridge)
        _validate.at_most(self.glyphs.count - 1, "the number of glyphs less one", dimensions=self.dimensions)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        settings = (self.shape, self.dimensions, self.glyphs, self.ridge)
        return f"GlyphMetric({self.base.name}; {', '.join(map(str, settings))})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features = as_tensor(self.base(values))
        projected: Values = unit((features - as_tensor(self.centre)) @ as_tensor(self.directions)).numpy()
        return projected

    @property
    def centre(self) -> Values:
        """The mean features of all glyphs [d]."""
        return self._learnt[0]

    @property
    def directions(self) -> Values:
        """The directions as columns [d, dimensions], the best first."""
        return self._learnt[1]

    @cached_property
    def _learnt(self) -> tuple[Values, Values]:
        found = disk.learnt(self.cache, self.name, self._learn)
        return found[0], np.ascontiguousarray(found[1:].T)

    def _learn(self) -> Values:
        """One array: the mean features, and below it each direction."""
        within, means = glyph_statistics(self.base, self.glyphs, self.shape)
        centre = means.mean(axis=0)
        between = means - centre  # a factor would not change the directions
        if self.dimensions > len(centre):
            remedy = f"give at most the number of features, which is {len(centre)}"
            raise ConfigError(field="dimensions", value=self.dimensions, remedy=remedy)
        directions = discriminants(within, between, ridge=self.ridge)[:, : self.dimensions]
        found: Values = np.vstack([centre, directions.T]).astype(np.float32)
        return found


def glyph_statistics(base: FeatureMap, glyphs: Glyphs, shape: Shape) -> tuple[Floats, Floats]:
    """The covariance [d, d] within glyphs and the mean features [glyphs, d] of each."""
    within, means = np.zeros(()), []
    for first in range(0, glyphs.count, _BLOCK):
        features = _features(base, glyphs, range(first, min(first + _BLOCK, glyphs.count)), shape)
        means.append(features.mean(axis=1, dtype=np.float64))
        residuals = torch.from_numpy(features - means[-1][:, None].astype(np.float32)).flatten(0, 1)
        within = within + (residuals.T @ residuals).numpy()  # products in float32, their sum in float64
    return within / (glyphs.count * glyphs.variants), np.concatenate(means)


def _features(base: FeatureMap, glyphs: Glyphs, block: range, shape: Shape) -> Values:
    """Features [glyphs, variants, d] of some glyphs."""

    def source(rows: slice) -> Values:  # one glyph a chunk
        return glyphs.render(block[rows.start // glyphs.variants], shape=shape)

    features = evaluate(base, source, len(block) * glyphs.variants, chunk=glyphs.variants)
    return features.reshape(len(block), glyphs.variants, -1)


def discriminants(within: Floats, between: Floats, *, ridge: float) -> Floats:
    """Directions v as columns, best first, that maximise v'Bv / v'Sv, with v'Sv = 1.

    B = between' between, of rank n for n rows, so a decomposition [d, n] replaces the generalised eigenproblem [d, d].
    The largest number of each direction is positive, which makes its sign unique.
    """
    spread = within + ridge * np.trace(within) / len(within) * np.eye(len(within))
    root = scipy.linalg.cholesky(spread, lower=True)
    whitened = scipy.linalg.solve_triangular(root, between.T, lower=True)
    axes, _, _ = scipy.linalg.svd(whitened, full_matrices=False)
    directions: Floats = scipy.linalg.solve_triangular(root, axes, lower=True, trans="T")
    largest = np.abs(directions).argmax(axis=0)
    directions *= np.sign(directions[largest, np.arange(directions.shape[1])])
    return directions
