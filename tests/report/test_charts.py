"""Charts: nothing is lost or outside, however long or odd the values are."""

import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy.statement import guess
from incrowd.report.charts import HEIGHT, WIDTH, ChartAxis, GuideLine, Series, line_chart
from incrowd.report.pictures import NamedBar, bars, guesses
from incrowd.report.promise import missed
from incrowd.report.scales import Scale, even_ticks, log_ticks, picked, thinned

FINITE = st.floats(-1e9, 1e9)
AXIS = ChartAxis(label="rounds", spelt=str)


def numbers(markup: str) -> list[float]:
    """The places of all lines, which are absolute."""
    paths = re.findall(r' d="([^"]+)" class="(?:line|band|edge|grid|reference)', markup)
    return [float(one) for path in paths for one in re.findall(r"-?\d+\.?\d*", path)]


@pytest.mark.slow
@given(st.lists(st.tuples(FINITE, FINITE), max_size=60), st.booleans(), st.booleans())
def test_every_curve_is_inside_of_its_chart(points: list[tuple[float, float]], log: bool, steps: bool) -> None:
    series = Series(name="a", points=sorted(points), steps=steps)
    axis = ChartAxis(label="value", spelt=str, log=log)
    drawn = line_chart([series], x=AXIS, y=axis, lines=[GuideLine(label="line", y=3.0)], name="curve")
    assert all(-5 <= one <= max(WIDTH, HEIGHT) + 5 for one in numbers(drawn))
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_a_long_name_of_a_bar_is_there_in_full_above_it() -> None:
    long = "two tables told apart by the average that is published, before the answer and 20 answers later"
    drawn = bars([NamedBar(name=long, value=1.0, said="1"), NamedBar(name="short", value=2.0, said="2")], name="bars")
    said = re.findall(r'y="([\d.]+)" class="tick">([^<]*)<', drawn)
    assert " ".join(text for _, text in said) == f"{long} short"
    assert [float(y) for y, _ in said] == sorted({float(y) for y, _ in said})
    height = float(re.search(r'viewBox="0 0 \d+ ([\d.]+)"', drawn)[1])  # type: ignore[index]  # there is one
    assert all(float(y) < height for y, _ in said)


def test_what_a_line_is_stands_over_the_curves() -> None:
    lines = [GuideLine(label="budget 2", y=2.0, strong=True), GuideLine(label="ends", x=1.0)]
    drawn = line_chart([Series(name="a", points=[(0.0, 0.0), (2.0, 4.0)])], x=AXIS, y=AXIS, lines=lines)
    curve = drawn.index('class="line')
    assert drawn.index('class="reference') < curve < drawn.index("budget 2") < drawn.index(">ends<")


@given(st.lists(FINITE, min_size=1, max_size=3000), st.integers(2, 300))
def test_thinning_loses_no_extreme(values: list[float], columns: int) -> None:
    points = [(float(place), value) for place, value in enumerate(values)]
    kept = thinned(points, columns=columns)
    assert len(kept) <= 4 * columns
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert {min(values), max(values)} <= {value for _, value in kept}
    assert (kept[0], kept[-1]) == (points[0], points[-1])


@given(st.integers(1, 5000), st.integers(2, 100))
def test_rows_of_a_table_are_evenly_spread(count: int, most: int) -> None:
    places = picked(count, most)
    assert len(places) <= most
    assert (places[0], places[-1]) == (0, count - 1)
    assert places == sorted(set(places))


@given(FINITE, st.floats(1e-6, 1e9))
def test_ticks_are_within_the_limits_and_few(low: float, width: float) -> None:
    high = low + width
    if high > low and width > 1e-9 * abs(low):
        ticks = even_ticks(low, high)
        assert len(ticks) <= 8
        assert all(low - 1e-6 * width <= one <= high + 1e-6 * width for one in ticks)


@given(st.floats(1e-9, 1e6), st.floats(1.001, 1e9))
def test_ticks_of_a_logarithmic_axis_are_within_the_limits(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert 1 <= len(ticks) <= 9
    assert all(low * (1 - 1e-6) <= one <= low * factor * (1 + 1e-6) for one in ticks)


def test_a_scale_of_one_value_is_widened() -> None:
    assert 0 < Scale(low=3.0, high=3.0, start=0.0, end=10.0)(3.0) < 10
    assert Scale(low=0.0, high=0.0, start=0.0, end=10.0, log=True)(0.0) == 0.0


@given(st.integers(-5, 105))
def test_a_hundred_guesses_are_a_hundred_people(right: int) -> None:
    drawn = guesses(right, name="odds")
    people = {kind: drawn.count("v-3a6 6", *span) for kind, span in _paths(drawn).items()}
    assert sum(people.values()) == 100
    assert people.get("chance", 0) + people.get("sure", 0) == min(max(right, 0), 100)
    assert people.get("chance", 0) <= 50


def _paths(drawn: str) -> dict[str, tuple[int, int]]:
    return {found[2]: found.span() for found in re.finditer(r'<path d="([^"]+)" class="person (\w+)"', drawn)}


@given(st.floats(0, 20), st.floats(0, 0.5), st.floats(0, 1))
def test_the_traded_errors_are_those_that_the_promise_allows(epsilon: float, delta: float, alarms: float) -> None:
    least = missed(alarms, epsilon, delta)
    assert 0 <= least <= 1
    # The two inequalities of differential privacy, each way round (Wasserman and Zhou 2010; Kairouz et al. 2015).
    assert alarms + math.exp(epsilon) * least >= 1 - delta - 1e-9
    assert math.exp(epsilon) * alarms + least >= 1 - delta - 1e-9
    best = max(1 - (place / 500 + missed(place / 500, epsilon, delta)) / 2 for place in range(501))
    assert best <= guess(epsilon, delta) + 1e-9
    equal = (1 - delta) / (1 + math.exp(epsilon))  # the best guess errs as often one way as the other
    assert 1 - (equal + missed(equal, epsilon, delta)) / 2 == pytest.approx(guess(epsilon, delta))


@pytest.mark.parametrize("values", [[], [0.0], [float("nan"), 1.0], [5.0, 0.0, 2.0]])
def test_bars_take_what_there_is(values: Sequence[float]) -> None:
    given_bars = [NamedBar(name=f"<{place}>", value=value, said=str(value)) for place, value in enumerate(values)]
    drawn = bars(given_bars, name="bars", line=(1.0, "line"))
    assert drawn.count('class="bar') == len(values)
    assert "nan" not in re.sub(r">[^<]*<", "", drawn)
    assert "<0>" not in drawn
