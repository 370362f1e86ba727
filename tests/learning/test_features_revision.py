"""Kept features are good only as long as maps compute under their names what they computed then."""

from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd.data import Category, Columns, Date, Number, Text, YesNo
from incrowd.learning.features import (
    GreyPictures,
    MadeUpPictures,
    PatchResponses,
    PicturesOrPixels,
    Spread,
    TableRows,
    TextBuckets,
    TokenGrams,
    Whitened,
    cache,
    compose,
)

REVISION = 8
"""Of what is pinned here. Who changes a map raises `cache._REVISION`, and this, and pins anew what changed:
`python -m pytest tests/learning/test_features_revision.py` says the numbers.
"""

SCHEMA: dict[str, Any] = {
    "age": Number(range=(0, 100)),
    "gain": Number(range=(0, 99_999)),
    "size": Number(),
    "sex": Category(levels=("f", "m", "d")),
    "day": Date(dates=(date(2020, 1, 1), date(2020, 12, 31))),
    "smoker": YesNo(),
    "note": Text(buckets=8, missing=""),
}
FEW = MadeUpPictures(count=8, variants=2, colour=True)


def rows() -> NDArray[np.float32]:
    columns = Columns(client="who", label="bad", classes=("no", "yes"), schema=SCHEMA).resolved(())
    width = sum(len(columns.meaning(name).features(name)) for name in columns.features)
    made = np.random.default_rng(0).uniform(-1, 1, (4, width)).astype(np.float32)
    return compose(TextBuckets(columns=columns), TableRows(columns=columns))(made)


def pictures(*shape: int) -> NDArray[np.float32]:
    """Of a thing on a ground each: brighter and darker, one far from 0 to 1, one beside the middle."""
    made = np.random.default_rng(1).uniform(0, 0.2, (4, *shape)).astype(np.float32)
    high, wide = shape[-2] // 3, shape[-1] // 3
    for number, thing in enumerate(made):
        thing[..., high : high + 2 + number, wide : 2 * wide] += 0.6
    made[1] *= 200
    made[2][..., : high // 2, :] = 0
    made[3] = np.roll(np.where(made[3] > 0.3, made[3], 0), 2, axis=-1)
    return made


def tokens() -> NDArray[np.float32]:
    return Spread(buckets=32).whole(TokenGrams()(np.random.default_rng(2).integers(0, 9, (4, 12))))


def learnt() -> NDArray[np.float32]:
    whole = PatchResponses(pictures=FEW, directions=12, of_each=40)(pictures(3, 16, 16))
    base = PicturesOrPixels(base=GreyPictures(), shape=(12, 12), pixels=64, raw=0.2)
    made_up = MadeUpPictures(count=12, variants=3)
    some = Whitened(base=base, shape=(12, 12), pictures=made_up, dimensions=7)(pictures(12, 12))
    return np.concatenate([whole / np.linalg.norm(whole), some], axis=1)


MAPS: dict[str, Callable[[], NDArray[np.float32]]] = {
    "rows": rows,
    "tokens": tokens,
    "grey": lambda: GreyPictures()(pictures(12, 12)),
    "learnt": learnt,
}
PINNED = {
    "rows": [1.0, 0.15879, 0.077456, 0.18502, 1.0, 0.82997, 0.81428, 1.0, 0.64252, 1.0],
    "tokens": [1.0, 0.094255, 0.20467, 0.55723, 1.0, 0.12376, -0.045995, 1.0, 0.27206, 1.0],
    "grey": [1.2589, 1.1817, 1.1621, 1.069, 1.2687, 1.2116, 1.1233, 1.2652, 1.1592, 1.2639],
    "learnt": [1.2511, 1.1501, 1.0531, 0.40046, 1.258, 1.1245, 0.52577, 1.2499, 0.719, 1.2411],
}


def alike(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """How alike the examples are: directions that were learnt may have another sign on another machine."""
    whole = features.astype(np.float64)
    return (whole @ whole.T)[np.triu_indices(len(whole))]


@pytest.mark.parametrize("name", MAPS)
def test_a_map_that_computes_something_else_under_its_name_has_another_revision(name: str) -> None:
    found, pinned = alike(MAPS[name]()), np.array(PINNED[name])
    assert cache._REVISION == REVISION
    said = f"pin {[float(f'{one:.5g}') for one in found]}, with the next revision: kept features are of another map"
    assert np.abs(found - pinned).max() <= 2e-3 * np.abs(pinned).max(), said
