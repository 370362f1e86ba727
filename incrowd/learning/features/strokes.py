"""The features of drawings by hand: strokes, and the directions that tell random drawings apart."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError
from incrowd.learning.features.energies import OrientedEnergies, SecondOrderEnergies
from incrowd.learning.features.feature_map import FeatureMap, compose
from incrowd.learning.features.glyphs import Glyphs
from incrowd.learning.features.images import Shape
from incrowd.learning.features.metric import GlyphMetric
from incrowd.learning.features.moments import MomentNormalisation
from incrowd.learning.features.norms import UnitNorm
from incrowd.learning.features.stretched import Stretched

_SMALL_DRAWING = 16  # pixels a side: the strokes of such a drawing are thin
_STROKES, _WITH_CORNERS = 8, 81  # how many numbers there are around each place
_CORNERS = 4  # the width of strokes that corners are looked for between
_FEW = Glyphs()
_MANY = Glyphs(count=1200, variants=25)  # fewer renderings of each keep the work the same


@dataclass(frozen=True, kw_only=True)
class UsualStrokes:
    """Which strokes suit drawings of this shape: thick ones with corners, or those of a small drawing."""

    shape: Shape

    @property
    def settings(self) -> dict[str, Any]:
        """What to tell `stroke_map`."""
        if max(self.shape) > _SMALL_DRAWING:
            return {"stroke_width": 4, "stride": 4, "corners": True, "deskew": True}
        return {"stroke_width": 2, "stride": 2, "deskew": True}

    @property
    def count(self) -> int:
        """How many features there are, and so how many directions at most."""
        here = _WITH_CORNERS if "corners" in self.settings else _STROKES
        stride: int = self.settings["stride"]
        return here * math.prod(math.ceil(side / stride) for side in self.shape)


def stroke_map(
    shape: Shape,
    *,
    stroke_width: int = 4,
    stride: int = 4,
    deskew: bool = False,
    corners: bool = False,
    dimensions: int | None = None,
    cache: Path | None = None,
) -> FeatureMap:
    """Strokes of this width around places that are `stride` pixels apart; with `corners` also those of half the width,
    and how they meet. Drawings are `stretched` first, and with `deskew` straightened. With `dimensions` they are seen
    along so many directions that tell random drawings apart, otherwise less their mean; of length one. Directions are
    kept in the folder `cache`.

    Edge cases: a width that is no power of two, and corners between strokes of another width than 4: refused.
    """
    if stroke_width < 2 or stroke_width.bit_count() != 1:
        raise ConfigError(
            field="stroke_width", value=stroke_width, remedy="give its pixels, a power of two: 2, 4, 8, ..."
        )
    if corners and stroke_width != _CORNERS:
        remedy = f"corners are those of strokes of {_CORNERS} pixels: give that, or leave them out"
        raise ConfigError(field="stroke_width", value=stroke_width, remedy=remedy)
    strokes: FeatureMap = OrientedEnergies(octave=stroke_width.bit_length() - 2, stride=stride)
    strokes = SecondOrderEnergies(stride=stride) if corners else strokes
    base = compose(Stretched(), *([MomentNormalisation()] if deskew else []), strokes)
    if dimensions is None:
        return compose(base, UnitNorm(centred=True))
    glyphs = _FEW if dimensions < _FEW.count else _MANY
    return GlyphMetric(base=base, shape=shape, dimensions=dimensions, glyphs=glyphs, cache=cache)
