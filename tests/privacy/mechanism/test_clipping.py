import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import (
    LARGEST,
    Clip,
    ElementwiseClip,
    FixedClip,
    Layout,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
    clip_rows,
    part_norms,
)


def every_clip(size: int, bound: float = 1.0) -> list[Clip]:
    clips: list[Clip] = [
        FixedClip(clip_norm=bound),
        NormalisedClip(clip_norm=bound),
        QuantileClip(clip_norm=bound, bit_noise=5.0),
        ElementwiseClip(limit=bound, size=max(size, 1)),
        PerLayerClip(clip_norms=(bound,), parts=(max(size, 1),)),
    ]
    if size > 1:
        clips.append(PerLayerClip(clip_norms=(bound, bound / 3), parts=(1, size - 1)))
    return clips


ANY_FLOAT = st.floats(width=64, allow_nan=True, allow_infinity=True)
ROWS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=ANY_FLOAT)


@pytest.mark.slow
@given(rows=ROWS, bound=st.floats(1e-6, 1e6))
@example(rows=np.array([[2.35621143e-162]]), bound=1.0)  # its square has lost most of its digits
@example(rows=np.array([[1e-160, 1e-161, 0.0]]), bound=1e-99)
def test_clipping_is_total(rows: NDArray[np.float64], bound: float) -> None:
    """Rule 5: whatever comes in, what goes out is finite and within the bound, or dropped."""
    for clip in every_clip(rows.shape[1], bound):
        clipped = clip_rows(clip, rows)
        assert np.all(np.isfinite(clipped.rows))
        for row, original, dropped in zip(clipped.rows, rows, clipped.dropped, strict=True):
            assert math.hypot(*row) <= clip.clip_norm
            assert not (dropped and row.any())
            assert dropped or np.all(np.isfinite(original))
            assert not dropped or not np.all(np.abs(original) < 1e150)  # our clips bound whatever has a norm


@given(rows=ROWS, bound=st.floats(1e-6, 1e6))
def test_nothing_but_the_normalised_clip_scales_up(rows: NDArray[np.float64], bound: float) -> None:
    for clip in every_clip(rows.shape[1], bound):
        if isinstance(clip, NormalisedClip):
            continue
        clipped = clip_rows(clip, rows)
        kept = ~clipped.dropped
        assert np.all(np.abs(clipped.rows[kept]) <= np.abs(rows[kept]))
        assert np.all(clipped.rows[kept] * rows[kept] >= 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_a_contribution_without_a_norm_is_dropped_and_counted(bad: float) -> None:
    rows = np.array([[0.1, bad], [0.1, 0.2]])
    for clip in every_clip(2):
        clipped = clip_rows(clip, rows)
        assert list(clipped.dropped) == [True, False]
        assert not clipped.rows[0].any()
        assert clipped.rows[1].all()
        assert not clipped.unclipped[0]


def test_short_contributions_are_left_exactly_alone() -> None:
    rows = np.array([[0.3, -0.4], [0.0, 0.0]])
    clips = (FixedClip(clip_norm=1), QuantileClip(clip_norm=1, bit_noise=5), ElementwiseClip(limit=1, size=2))
    for clip in clips:
        clipped = clip_rows(clip, rows)
        assert np.array_equal(clipped.rows, rows)
        assert clipped.unclipped.all()


def test_another_size_than_the_clip_s_is_refused() -> None:
    for clip in (ElementwiseClip(limit=1, size=2), PerLayerClip(clip_norms=(1.0,), parts=(2,))):
        with pytest.raises(ConfigError, match="contributions of 2 numbers"):
            clip_rows(clip, np.zeros(3))


def summed(clip: Clip | MedianClip, rows: Floats) -> Floats:
    total = ClippedSum(6, clip, contributions_bound=50)
    total.add(rows)
    return total.close().values


@pytest.mark.parametrize("clip", [*every_clip(6, 0.7), MedianClip()], ids=lambda clip: type(clip).__name__)
def test_contributions_enter_as_whole_steps_each_by_itself_and_never_longer(clip: Clip | MedianClip) -> None:
    rows = np.random.Generator(np.random.PCG64(4)).normal(size=(50, 6))
    bound = clip.fit(np.linalg.norm(rows, axis=1)) if isinstance(clip, MedianClip) else clip
    each = np.concatenate([summed(bound, row[None])[None] for row in rows])
    assert (np.abs(each) <= np.abs(bound.clip(rows))).all(), "rounding made some of them longer"
    assert np.array_equal(summed(clip, rows), each.sum(axis=0)), "what was left over by rounding has added up"


class TestQuantile:
    def test_noise_cannot_throw_the_bound_away(self) -> None:
        clip = QuantileClip(clip_norm=1.0, bit_noise=5.0, learning_rate=1.0)
        assert clip.updated(1e9).clip_norm == pytest.approx(math.exp(-0.5))
        for fraction, end in ((9.0, 1e-12), (-9.0, 1e12)):
            assert replace(clip, clip_norm=end).updated(fraction).clip_norm == end

    @given(z=st.floats(0.1, 50), excess=st.floats(1.001, 100))
    def test_update_and_bits_together_cost_the_round(self, z: float, excess: float) -> None:
        clip = QuantileClip(clip_norm=1.0, bit_noise=excess * z / 2)
        update = clip.update_multiplier(z)
        assert update > z
        # Two Gaussians on the same cohort are one: the squares of sensitivity over noise add up. A bit moves by 1/2.
        assert update**-2 + (0.5 / clip.bit_noise) ** 2 == pytest.approx(z**-2)


class TestMedian:
    def test_is_marked_as_not_private(self) -> None:
        assert MedianClip().private is False
        assert all(clip.private for clip in every_clip(3))

    def test_bound_is_the_cohort_s_median(self) -> None:
        assert MedianClip().fit(np.array([1.0, 2.0, 30.0])).clip_norm == 2
        assert MedianClip().fit(np.array([1.0, math.nan, 3.0, math.inf])).clip_norm == 2
        assert [MedianClip(floor=0.25).fit(norms).clip_norm for norms in (np.empty(0), np.zeros(3))] == [0.25, 0.25]
        assert MedianClip().fit(np.array([1e200])).clip_norm == LARGEST


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FixedClip(clip_norm=0), "clip_norm"),
        (lambda: FixedClip(clip_norm=math.inf), "clip_norm"),
        (lambda: FixedClip(clip_norm=1e-101), "clip_norm"),
        (lambda: FixedClip(clip_norm=1e101), "clip_norm"),
        (lambda: NormalisedClip(clip_norm=-1), "clip_norm"),
        (lambda: PerLayerClip(clip_norms=(1.0,), parts=(1, 2)), "clip_norms"),
        (lambda: PerLayerClip(clip_norms=(), parts=()), "clip_norms"),
        (lambda: PerLayerClip(clip_norms=(1.0, 0.0), parts=(1, 2)), "clip_norms[1]"),
        (lambda: PerLayerClip(clip_norms=(1.0, 1.0), parts=(1, 0)), "parts[1]"),
        (lambda: ElementwiseClip(limit=0, size=1), "limit"),
        (lambda: ElementwiseClip(limit=1, size=0), "size"),
        (lambda: QuantileClip(clip_norm=1, bit_noise=0), "bit_noise"),
        (lambda: QuantileClip(clip_norm=1, bit_noise=1, quantile=1), "quantile"),
        (lambda: MedianClip(floor=0), "floor"),
        (lambda: Layout(names=("a",), shapes=()), "shapes"),
        (lambda: Layout(names=("a", "a"), shapes=((1,), (2,))), "names"),
    ],
)
def test_impossible_clips_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_a_norm_that_rounds_down_to_the_bound_is_scaled_down() -> None:
    """In exact arithmetic, and where the norm as computed is the bound itself."""
    rounded_down = 0
    for seed in range(100):
        row = np.random.default_rng(seed).normal(size=(1, 50))
        bound = float(part_norms(row, None)[0, 0])
        rounded_down += sum(Fraction(x) ** 2 for x in row[0].tolist()) > Fraction(bound) ** 2
        clipped = FixedClip(clip_norm=bound).clip(row)
        assert sum(Fraction(x) ** 2 for x in clipped[0].tolist()) <= Fraction(bound) ** 2
    assert rounded_down > 10


# Several arrays, one contribution


@given(st.lists(array_shapes(min_dims=0, min_side=0, max_side=4), max_size=5))
def test_flatten_and_unflatten_are_inverse(shapes: list[tuple[int, ...]]) -> None:
    layout = Layout(names=tuple(f"w{i}" for i in range(len(shapes))), shapes=tuple(shapes))
    vector = np.arange(float(layout.size))
    arrays = layout.unflatten(vector)
    assert [a.shape for a in arrays.values()] == shapes
    assert np.array_equal(layout.flatten(arrays), vector)
    assert Layout.of(arrays) == layout


@pytest.mark.parametrize(
    "arrays",
    [{"a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros(1), "c": np.zeros(1)}, {"a": np.zeros(3), "b": np.zeros(1)}],
    ids=["missing", "unknown", "other shape"],
)
def test_a_contribution_of_another_layout_is_refused(arrays: dict[str, np.ndarray]) -> None:
    layout = Layout(names=("a", "b"), shapes=((2,), (1,)))
    with pytest.raises(DataError, match="layout"):
        layout.flatten(arrays)
    with pytest.raises(DataError, match="3 numbers"):
        layout.unflatten(np.zeros(4))
