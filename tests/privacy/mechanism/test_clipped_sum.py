import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
)

CONTRIBUTIONS, SIZE = 50, 6
CLIPS: list[Clip | MedianClip] = [
    FixedClip(clip_norm=0.3),
    NormalisedClip(clip_norm=3.0),
    PerLayerClip(clip_norms=(0.7, 1.1), parts=(2, 4)),
    ElementwiseClip(limit=0.4, size=SIZE),
    QuantileClip(clip_norm=1.3, bit_noise=5.0),
    MedianClip(),
]


def summed(clip: Clip | MedianClip, rows: Floats) -> Floats:
    total = ClippedSum(SIZE, clip, contributions_bound=CONTRIBUTIONS)
    total.add(rows)
    return total.close().values


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: type(clip).__name__)
def test_contributions_enter_as_whole_steps_each_by_itself_and_never_longer(clip: Clip | MedianClip) -> None:
    rows = np.random.Generator(np.random.PCG64(4)).normal(size=(CONTRIBUTIONS, SIZE))
    bound = clip.fit(np.linalg.norm(rows, axis=1)) if isinstance(clip, MedianClip) else clip
    each = np.concatenate([summed(bound, row[None])[None] for row in rows])
    assert (np.abs(each) <= np.abs(bound.clip(rows))).all(), "rounding made some of them longer"
    assert np.array_equal(summed(clip, rows), each.sum(axis=0)), "what was left over by rounding has added up"
