"""Rows of a table as a linear model sees them: from what is stated alone."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Category, Columns, Date, Number, Text, YesNo
from incrowd.errors import ConfigError
from incrowd.learning.features import TableRows
from incrowd.learning.features.table_rows import PLACES, sizes
from incrowd.runs.build import feature_map_of
from incrowd.runs.data_config import TableFeatures

WORDS: dict[str, Any] = {
    "age": {"range": [0, 100], "outside": "clip", "missing": 40, "indicator": True},
    "gain": {"range": [0, 99_999]},
    "sex": {"levels": ["f", "m"]},
    "day": {"dates": ["2020-01-01", "2020-12-31"]},
    "smoker": "yes/no",
    "note": {"kind": "text", "buckets": 8, "missing": ""},
}


def table(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["who,age,gain,sex,day,smoker,note,bad", *rows]) + "\n")
    return path


def columns(**schema: Any) -> Columns:
    return Columns(client="who", label="bad", classes=("no", "yes"), schema=schema or WORDS).resolved(())


def mapped(schema: dict[str, Any], row: list[float], *, bins: int = 4) -> list[float]:
    made = TableRows(columns=columns(**schema), bins=bins)(np.array([row], np.float32))[0]
    return list(map(float, made))


def test_a_number_becomes_ramps_over_its_stated_range() -> None:
    middle = mapped({"age": Number(range=(0, 100))}, [0.25])  # 62.5: in the middle of the third of four parts
    assert np.allclose(middle, np.array([1, 1, 0, -1]) / np.sqrt(3), atol=1e-5)
    unit = mapped({"age": Number(range=(0, 100), to=(0, 1))}, [0.625])
    assert np.allclose(unit, middle)
    day = mapped({"day": Date(dates=(date(2020, 1, 1), date(2020, 1, 8)))}, [0.25])
    assert np.allclose(day, middle)


def test_levels_are_centred_and_texts_alone_are_told_as_they_are() -> None:
    assert np.allclose(mapped({"sex": Category(levels=("f", "m", "x"))}, [0, 1, 0]), np.array([-1, 2, -1]) / 6**0.5)
    assert np.allclose(mapped({"smoker": YesNo()}, [0.0]), [-1], atol=1e-5)
    text = [0.6, 0, -0.8]
    assert np.allclose(mapped({"note": Text(buckets=3)}, text), text, atol=1e-5)


@given(age=st.floats(0, 100), gain=st.floats(0, 99_999), bins=st.integers(1, 9))
def test_every_row_is_of_length_one_and_alone(age: float, gain: float, bins: int) -> None:
    stated = columns(age=Number(range=(0, 100)), gain=Number(range=(0, 99_999)), sex=Category(levels=("f", "m")))
    row = [age / 50 - 1, 2 * gain / 99_999 - 1, 1.0, 0.0]
    made = TableRows(columns=stated, bins=bins)
    alone = made(np.array([row], np.float32))
    assert np.isclose(np.linalg.norm(alone), 1, atol=1e-4)
    beside = made(np.array([row, [1, 1, 0, 1], row], np.float32))
    assert np.array_equal(beside[0], alone[0])
    assert np.array_equal(beside[2], alone[0])


def test_a_number_without_a_range_is_seen_by_its_size() -> None:
    schema = {"age": Number(range=(0, 100)), "weight": Number()}
    seen = np.array(mapped(schema, [0.25, 1000.0]))
    ramps, near = np.split(seen, [4])
    assert np.allclose(ramps / ramps[0], [1, 1, 0, -1], atol=1e-5)
    assert near.shape == (PLACES,)
    assert np.argmax(near) == PLACES // 2 + 18  # six decades above a thousandth
    assert np.isclose(near.max(), 2 * ramps[0], atol=1e-5)  # a ramp of four is half as loud
    assert mapped(schema, [0.25, 1000.0]) != mapped(schema, [0.25, -1000.0])
    quiet = np.array(mapped(schema, [0.25, 1.0]))
    assert np.argmax(quiet[4:]) == PLACES // 2 + 9  # beside what has a scale it is one of the others, however small


def test_all_zeros_of_a_row_together_weigh_as_much_as_one_number() -> None:
    near = sizes(np.array([[0.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0]])).reshape(2, 4, PLACES)
    assert near[..., PLACES // 2].tolist() == pytest.approx(np.array([[0.5] * 4, [3**-0.5, 0, 3**-0.5, 3**-0.5]]))


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_numbers_are_there_as_they_are_too(share: float) -> None:
    stated = columns(age=Number(range=(-100, 100)), weight=Number(), smoker=YesNo(), note=Text(buckets=2))
    row = np.array([0.03, -0.04, 1.0, 0.6, 0.8], np.float32)
    without, beside = (TableRows(columns=stated, raw=raw)(row[None])[0] for raw in (0.0, share))
    numbers = np.sqrt(share) * row[:2] / np.linalg.norm(row)
    assert np.allclose(beside[-2:], numbers, atol=1e-6)
    assert np.allclose(beside[:-2], without * np.sqrt(1 - numbers @ numbers), atol=1e-6)
    assert np.isclose(np.linalg.norm(beside), 1, atol=1e-5)


def test_rows_of_another_table_are_refused() -> None:
    made = TableRows(columns=columns(age=Number(range=(0, 1))))
    with pytest.raises(ConfigError, match=r"the columns become 1 numbers, these rows have \(2,\)"):
        made(np.zeros((3, 2), np.float32))
    with pytest.raises(ConfigError, match=r"name = 'table': it needs rows of a table"):
        feature_map_of(TableFeatures(), (3,))
