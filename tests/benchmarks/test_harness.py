import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness import checks
from harness.pictures import axes, dress, files, kinds, logarithmic, shades
from harness.results import Finding, columns, markdown, show
from harness.seeds import means, repeated, spread, summary
from incrowd import ConfigError


def test_a_measurement_is_repeated_for_each_seed_and_progress_is_told() -> None:
    said: list[str] = []
    found = repeated(lambda seed: 10 * seed, seeds=3, told="got {}".format, say=said.append)
    assert (found.runs, found.first) == ([0, 10, 20], 0)
    assert [line.rpartition(" after ")[0] for line in said] == [
        "  seed 0: got 0",
        "  seed 1: got 10",
        "  seed 2: got 20",
    ]
    assert found.seconds >= 0
    assert repeated(str, seeds=[7, 5]).runs == ["7", "5"]


@pytest.mark.parametrize("seeds", [0, -1, True])
def test_no_seed_is_refused(seeds: int) -> None:
    with pytest.raises(ConfigError, match="seeds = "):
        repeated(str, seeds=seeds)


def test_one_seed_has_no_spread() -> None:
    assert summary([0.5, 0.7]) == {"accuracy": 0.6, "accuracy_sd": pytest.approx(math.sqrt(0.02))}
    assert summary([0.5], "loss") == {"loss": 0.5, "loss_sd": None}
    assert spread([1.0]) is None
    assert means([[1, 2], [3, 6]]) == [2, 4]


@pytest.mark.parametrize(
    ("check", "fine", "wrong"),
    [
        (checks.count, (1, 5), (0, -1, 1.0, True, "1", None)),
        (checks.natural, (0, 5), (-1, 0.5, False)),
        (checks.positive, (0.1, 5), (0, -1, math.nan, math.inf, True, "1")),
        (checks.non_negative, (0, 0.1), (-0.1, math.nan, math.inf, None)),
        (checks.fraction, (0.1, 0.9), (0, 1, math.nan, "0.5")),
        (checks.probability, (0.1, 1), (0, 1.1, math.nan)),
    ],
)
def test_checks_name_field_and_value(check: object, fine: tuple[object, ...], wrong: tuple[object, ...]) -> None:
    assert callable(check)
    for value in fine:
        check(size=value)
    for value in wrong:
        with pytest.raises(ConfigError, match=r"size = .*give a "):
            check(size=value)


def test_limits_and_names_are_checked() -> None:
    checks.at_most(3, "all", size=3)
    with pytest.raises(ConfigError, match="size = 4: give at most all, which is 3"):
        checks.at_most(3, "all", size=4)
    checks.known(["a", "b"], way="b")
    with pytest.raises(ConfigError, match="way = 'c': give one of a, b"):
        checks.known(["a", "b"], way="c")


def test_columns_are_picked_named_and_shortened() -> None:
    entries = [{"a": 1.23456, "b": None, "c": 7}]
    assert columns(entries, ("c", "a")) == [{"c": 7, "a": 1.23456}]
    assert columns(entries, {"first": "a", "second": "b"}, digits=3, none="") == [{"first": 1.23, "second": ""}]


def test_a_table_in_markdown() -> None:
    assert markdown([{"who": "us", "rate": 2}, {"who": "them", "rate": 1}], left={"who"}) == [
        "| who | rate |",
        "| --- | ---: |",
        "| us | 2 |",
        "| them | 1 |",
    ]


def test_results_are_one_json_object_or_parts_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(statement="it is so", measured="it is not", agrees=False).to_json()
    found = {"rows": [{"rate": 2}], "findings": [finding], "files": ["a.png"]}
    show(found, "words", {"a_fact": 1}, [{"rate": 2}], as_json=True)
    assert json.loads(capsys.readouterr().out) == found
    show(found, "words", {"a_fact": 1}, [{"rate": 2}], as_json=False)
    words, fact, *_, last_but_one, last = capsys.readouterr().out.splitlines()
    assert (words, fact) == ("words", "a fact       1")
    assert (last_but_one, last) == ("DIFFERS  it is so: it is not", "drawn: a.png")


@pytest.mark.slow
def test_a_picture_is_in_all_its_files(tmp_path: Path) -> None:
    paths = files(tmp_path / "new", "curve")
    with axes(*paths, columns=2) as (left, right):
        left.plot([1, 2], label="rising")
        dress(left, "rounds", "accuracy")
        dress(right, title="empty")
        assert left.get_legend() is not None
        assert right.get_legend() is None
    assert [path.name for path in paths] == ["curve.png", "curve.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert "SIMULATION: seeded noise" in paths[1].read_text()


@pytest.mark.slow
def test_the_same_picture_is_the_same_file_and_says_no_date(tmp_path: Path) -> None:
    several = [files(tmp_path / name, "curve") for name in ("one", "other")]
    for paths in several:
        with axes(*paths) as (panel,):
            panel.plot([1, 2], [1 / 3, 2 / 3])
            dress(panel, "rounds", "accuracy")
    for one, other in zip(*several, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert not re.search(rb"dc:date|20\d\d-\d\d-\d\d", one.read_bytes())


def test_a_drawing_is_still_one_where_its_numbers_are_cut(tmp_path: Path) -> None:
    with axes(tmp_path / "curve.svg") as (panel,):
        panel.plot([0, 1, 2], [0.0, 1 / 3, 1.0], gid="line")
    drawing = ElementTree.parse(tmp_path / "curve.svg")  # noqa: S314 - drawn a moment ago
    (line,) = (one for one in drawing.iter() if one.get("id") == "line")
    first, *rest = re.findall(r"([ML])([\d.]+) ([\d.]+)", line[0].get("d") or "")
    assert (first[0], [one[0] for one in rest]) == ("M", ["L", "L"])
    places = [(float(x), float(y)) for _, x, y in (first, *rest)]
    assert (places[1][0] - places[0][0]) == pytest.approx(places[2][0] - places[1][0], abs=0.2)
    assert (places[0][1] - places[1][1]) == pytest.approx((places[0][1] - places[2][1]) / 3, abs=0.2)


def test_numbers_go_from_dark_to_light_and_kinds_differ_in_colour_and_line() -> None:
    light = [
        sum(weight * part for weight, part in zip((0.3, 0.6, 0.1), one["color"], strict=False)) for one in shades(8)
    ]
    assert light == sorted(light)
    assert light[-1] < 0.8  # seen on white
    assert shades(1) == shades(2)[:1]
    six = kinds(6)
    assert len({one["color"] for one in six}) == len({str(one["linestyle"]) for one in six}) == 6
    assert kinds(7)[6] == six[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "shown"), [((1, 40), ["1", "2", "5", "10", "20"]), ((1, 100_000), ["1", "10", "100", "1,000"])]
)
def test_logarithmic_axes_have_numbers_as_people_write_them(
    tmp_path: Path, values: tuple[float, float], shown: list[str]
) -> None:
    with axes(tmp_path / "curve.svg") as (panel,):
        panel.plot(values, values)
        logarithmic(panel)
    text = (tmp_path / "curve.svg").read_text()
    assert [one for one in shown if text.count(f">{one}</text>") != 2] == []


@pytest.mark.parametrize("name", ["curve.doc", "nowhere/curve.png"])
def test_a_file_that_cannot_be_drawn_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"name a writable \.png, \.svg or \.pdf"), axes(tmp_path / name):
        pass
