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
from incrowd.report.scales import thinned

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


@given(st.lists(FINITE, min_size=1, max_size=3000), st.integers(2, 300))
def test_thinning_loses_no_extreme(values: list[float], columns: int) -> None:
    points = [(float(place), value) for place, value in enumerate(values)]
    kept = thinned(points, columns=columns)
    assert len(kept) <= 4 * columns
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert {min(values), max(values)} <= {value for _, value in kept}
    assert (kept[0], kept[-1]) == (points[0], points[-1])


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
