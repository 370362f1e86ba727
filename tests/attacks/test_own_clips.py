"""A clip of one's own that does not bound contributions is held to the bound that it states.

Attack: a clip that is an honest mistake (it scales up, gives NaN, or bounds another norm) was taken at its word, and
noise for a bound of 1 hid contributions of any length.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import ClippedSum, CohortSum, ContributionRows
from incrowd.privacy.mechanism.clipping import FixedClip, clip_rows

pytestmark = pytest.mark.watched

BOUND, SIZE = 0.5, 6
ROWS = np.array([[1.0] * SIZE, [0.01] * SIZE, [1e160] * SIZE, [-3.0, *[0.0] * (SIZE - 1)], [0.0] * SIZE])


@dataclass(frozen=True, kw_only=True)
class Own(FixedClip):
    """A clip that does so many times what it states."""

    times: float

    def factors(self, norms: Floats) -> Floats:
        return super().factors(norms) * self.times

    def clip(self, rows: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return super().clip(rows) * self.times


@dataclass(frozen=True)
class Cohort:
    """One client, of whom only the norm and the sum come."""

    row: Floats
    clients: tuple[int, ...] = (0,)

    def chunks(self) -> Iterator[ContributionRows]:
        raise AssertionError("the sum is asked for")

    def summed(self, *, bound: float, parts: object, factors: object) -> CohortSum:
        norms = np.array([[np.linalg.norm(self.row)]])
        assert callable(factors)
        step = grid.coarse_step(bound)
        return _Sum(norms=norms, total=np.trunc(self.row * factors(norms)[0] / step) * step)


@dataclass(frozen=True, kw_only=True)
class _Sum:
    norms: Floats
    total: Floats


@pytest.mark.parametrize("times", [1.0, 2.0, -3.0, 1e300, np.inf, np.nan])
def test_what_enters_is_never_longer_than_the_bound(times: float) -> None:
    clip = Own(clip_norm=BOUND, times=times)
    for row in ROWS:
        clipped = clip_rows(clip, row).rows[0]
        assert np.linalg.norm(clipped) <= BOUND
        total = ClippedSum(SIZE, clip, contributions_bound=2)
        total.add(row[None])
        whole = total.close()
        assert np.linalg.norm(whole.steps * whole.step) <= BOUND
    for row in ROWS[[0, 1, 3, 4]]:
        summed = ClippedSum(SIZE, clip, contributions_bound=2)
        summed.add_summed(clip, Cohort(row))
        whole = summed.close()
        assert np.linalg.norm(whole.steps * whole.step) <= BOUND


def test_a_clip_that_bounds_is_left_alone() -> None:
    ours, own = FixedClip(clip_norm=BOUND), Own(clip_norm=BOUND, times=1.0)
    np.testing.assert_allclose(clip_rows(own, ROWS).rows, clip_rows(ours, ROWS).rows, rtol=1e-6)
    assert np.linalg.norm(clip_rows(ours, ROWS).rows[0]) > 0.99 * BOUND
