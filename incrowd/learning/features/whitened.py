"""Features seen along the directions in which made-up pictures differ, none much louder than the others."""

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from incrowd import _validate
from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.learning.features import cache as disk
from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.learning.features.images import Shape, as_tensor
from incrowd.learning.features.made_up import MadeUpPictures
from incrowd.learning.features.mirrored import Mirrored
from incrowd.learning.features.norms import unit
from incrowd.learning.features.order import OwnPixels
from incrowd.learning.features.pictures import ColourPictures, GreyPictures, PictureShape, in_colour, reduced
from incrowd.learning.features.transform import evaluate

_log = logging.getLogger(__name__)

_BEYOND = 64  # directions that are looked for beyond those that are wanted, so that these are found well
_PASSES = 2


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """The features of `base`, seen along the `dimensions` leading principal directions of made-up pictures of this
    `shape`, each divided by its standard deviation to the power of 2 `whitening`; L2 norm 1.

    In real pictures, too, a few directions have most of the variance, and what there is to be told apart is in the
    others as well. Whitening brings it up: under noise of equal strength in all directions each then counts. It knows
    pictures in general, by made-up ones, and no data set; no example of any client is used, so it costs no privacy.

    The first use learns the directions, which takes seconds to a minute; with `cache`, a folder, they are kept.

    Guarantee: the same settings give the same features on one machine.

    Edge cases: on machines with other linear algebra the last digits can differ.
    """

    base: FeatureMap
    shape: Shape
    pictures: MadeUpPictures
    dimensions: int = 256
    whitening: float = 0.5
    cache: Path | None = None

    def __post_init__(self) -> None:
        _validate.count(dimensions=self.dimensions)
        _validate.non_negative(whitening=self.whitening)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        settings = (self.shape, self.pictures, self.dimensions, self.whitening)
        return f"Whitened({self.base.name}; {', '.join(map(str, settings))})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        centre, directions = self._learnt
        projected: Values = unit((as_tensor(self.base(values)) - centre) @ directions).numpy()
        return projected

    @cached_property
    def _learnt(self) -> tuple[Tensor, Tensor]:
        """The mean features [d], and the directions [d, dimensions] over what they are divided by."""
        key = f"spectrum {self.base.name} {self.shape} {self.pictures} {self.dimensions}"
        found = disk.learnt(self.cache, key, self._spectrum)
        variances = torch.from_numpy(found[1:]).norm(dim=1)
        directions = torch.from_numpy(found[1:]) / variances[:, None]
        return torch.from_numpy(found[0]), (directions.T * (variances / variances[0]) ** -self.whitening).contiguous()

    def _spectrum(self) -> Values:
        """One array: the mean features, and below each direction times its variance."""
        pictures, kept = self.pictures, "" if self.cache is None else ", once on this machine"
        _log.info("learning the features of pictures from made-up ones%s: up to a minute", kept)

        def source(rows: slice) -> Values:  # one thing a chunk
            return pictures.render(rows.start // pictures.variants, shape=self.shape)

        features = evaluate(self.base, source, pictures.count * pictures.variants, chunk=pictures.variants)
        if self.dimensions > min(features.shape):
            remedy = f"give at most {min(features.shape)}, the number of features, or of made-up pictures"
            raise ConfigError(field="dimensions", value=self.dimensions, remedy=remedy)
        centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        directions, variances = principal(as_tensor(features - centre), self.dimensions, seed=pictures.seed)
        found: Values = torch.cat([torch.from_numpy(centre)[None], directions * variances[:, None]]).numpy()
        return found


def picture_map(
    shape: PictureShape,
    *,
    dimensions: int = 256,
    whitening: float | None = None,
    mirrored: bool | None = None,
    own: OwnPixels | None = None,
    cache: Path | None = None,
) -> FeatureMap:
    """The features of pictures of this shape, along so many directions: grey ones, or colours. `mirrored` pictures mean
    the same in a mirror (`Mirrored`); unless told, those in colours do, which are taken for photographs. `own` says
    what there is of an example's pixels beside them.
    """
    colour = in_colour(shape)
    base: FeatureMap = ColourPictures(cache=cache) if colour else GreyPictures(cache=cache)
    usual = 0.3 if colour else 0.5
    known: FeatureMap = Whitened(
        base=Mirrored(base=base) if (colour if mirrored is None else mirrored) else base,
        shape=reduced(shape),
        pictures=MadeUpPictures(colour=colour, blank=0.1 if colour else 0.5),
        dimensions=dimensions,
        whitening=usual if whitening is None else whitening,
        cache=cache,
    )
    return (own or OwnPixels()).beside(known, shape)


def principal(rows: Tensor, count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """The leading principal directions [count, d] of centred rows [n, d] and the variances along them.

    By a randomised range finder with power iterations (Halko, Martinsson, Tropp 2011, algorithm 4.4); the largest
    number of each direction is positive.
    """
    sought = min(count + _BEYOND, *rows.shape)
    normals = SeededRandomness(seed).stream("directions").normals(rows.shape[1] * sought)
    basis = torch.from_numpy(normals.reshape(rows.shape[1], sought).astype(np.float32))
    for _ in range(_PASSES + 1):
        basis, _ = torch.linalg.qr(rows.T @ torch.linalg.qr(rows @ basis)[0])
    _, sizes, axes = torch.linalg.svd(rows @ basis, full_matrices=False)
    directions = (axes[:count] @ basis.T).contiguous()
    largest = directions.abs().argmax(1, keepdim=True)
    return directions * directions.gather(1, largest).sign(), sizes[:count].square() / len(rows)
