"""Two statements about a table, and no row: whether one can be read as the other wants it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Columns, Reading, Text, read_table
from incrowd.data.columns import agreed
from incrowd.errors import ConfigError, DataError


def columns(label: str = "y", classes: Any = None, **schema: Any) -> Columns:
    return Columns(client="", label=label, classes=classes, schema=schema).resolved(())


AGE = {"range": [0, 120]}


@pytest.mark.parametrize(
    ("wanted", "own"),
    [
        (AGE, AGE),
        (AGE, {"range": [10, 90]}),
        ({"range": [0, 120], "outside": "clip"}, "number"),
        ("number", AGE),
        ({"range": [0, 9], "missing": 3}, {"range": [0, 9], "missing": 1}),
        ({"range": [0, 9], "missing": 3}, {"range": [0, 9]}),
        ({"levels": ["a", "b"]}, {"levels": ["b"]}),
        ({"levels": ["a"], "other": True}, {"levels": ["a", "b"]}),
        ({"levels": ["a"], "other": True}, {"levels": ["a"], "other": True}),
        ("yes/no", {"yes": ["ja"], "no": ["nein"]}),
        ({"dates": ["2000-01-01", "2030-01-01"]}, {"dates": ["2001-01-01", "2029-01-01"], "format": "%d.%m.%Y"}),
    ],
)
def test_what_is_within_what_is_wanted_fits(wanted: Any, own: Any) -> None:
    assert agreed(columns(a=wanted), columns(a=own)).features == ("a",)


def test_classes_of_a_party_are_among_those_of_the_offer() -> None:
    assert agreed(columns(classes=3, a=AGE), columns(classes=2, a=AGE)).classes == 3
    for wanted, own in (("no",), ("no", "yes")), (2, 3):
        with pytest.raises(ConfigError, match="classes"):
            agreed(columns(classes=wanted, a=AGE), columns(classes=own, a=AGE))


def test_every_party_gives_the_same_numbers_however_it_writes_its_cells(tmp_path: Path) -> None:
    wanted = columns(sex={"levels": ["f", "m"]}, smokes="yes/no", since={"dates": ["2000-01-01", "2020-12-31"]})
    german = Columns(
        client="",
        label="y",
        schema={
            "since": {"dates": ["2000-01-01", "2020-12-31"], "format": "%d.%m.%Y"},
            "smokes": {"yes": ["ja"], "no": ["nein"]},
            "sex": {"levels": ["m", "f"]},
        },
        reading=Reading(delimiter=";", decimal=","),
    ).resolved(())
    english = columns(sex={"levels": ["f", "m"]}, smokes="yes/no", since={"dates": ["2000-01-01", "2020-12-31"]})
    (tmp_path / "de.csv").write_text("since;y;sex;smokes\n31.01.2010;1,5;m;ja\n")
    (tmp_path / "en.csv").write_text("y,smokes,sex,since\n1.5,yes,m,2010-01-31\n")
    de, _ = read_table(tmp_path / "de.csv", agreed(wanted, german))
    en, _ = read_table(tmp_path / "en.csv", agreed(wanted, english))
    assert np.array_equal(np.asarray(de.features), np.asarray(en.features))
    assert de.labels.tolist() == en.labels.tolist() == [1.5]


ranges = st.tuples(st.integers(-5, 5), st.integers(6, 12))


@given(own=ranges, wanted=ranges, clip=st.booleans(), cells=st.lists(st.integers(-8, 15), min_size=1, max_size=5))
def test_rows_that_are_as_stated_are_never_refused_after_a_yes(
    own: tuple[int, int],
    wanted: tuple[int, int],
    clip: bool,
    cells: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stated = columns(a={"range": list(own)})
    offered = columns(a={"range": list(wanted), **({"outside": "clip"} if clip else {})})
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text("a,y\n" + "".join(f"{cell},1\n" for cell in cells))
    try:
        read_table(path, stated)
    except DataError:
        return  # the owner sees to that, before any offer
    try:
        columns_to_read = agreed(offered, stated)
    except ConfigError:
        assert not clip
        assert not (wanted[0] <= own[0] and own[1] <= wanted[1])
    else:
        read_table(path, columns_to_read)


def test_a_text_becomes_no_more_numbers_than_its_owner_states() -> None:
    own = Columns(client="", label="y", classes=2, schema={"note": {"kind": "text", "buckets": 64, "pieces": 64}})

    def wanted(buckets: int = 64, pieces: int = 64) -> Columns:
        note = Text(buckets=buckets, pieces=pieces)
        return Columns(client="", label="y", classes=2, schema={"note": note}).resolved(())

    assert agreed(wanted(), own).meaning("note") == Text(buckets=64, pieces=64)
    for field in ("buckets", "pieces"):
        with pytest.raises(ConfigError, match=rf"columns\.note\.{field} = 65: here a text becomes 64 numbers at most"):
            agreed(wanted(**{field: 65}), own)
