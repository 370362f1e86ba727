"""A server offers columns whose words differ from a party's so that only some rows, all as the party states, would do.

Each of these told a server, for nothing and as often as it asked, whether there is such a row: a range of its own,
moved a little each time, found the largest value that a party clips.
"""

from pathlib import Path

import pytest

from incrowd.data import read_table
from incrowd.data.columns import Columns, agreed
from incrowd.errors import ConfigError, DataError
from incrowd.federation import Federation
from tests.parties.members import Hospitals, MemberLine, settings_text

# What the party states, what the server wants, a cell that would do, and one that is as stated, too.
ORACLES = {
    "beyond a range that is clipped": (
        'age = {range = [0, 120], outside = "clip"}',
        "age = {range = [0, 120]}",
        "30",
        "500",
    ),
    "beyond every float32": (
        'age = {range = [0, 120], outside = "clip"}',
        'age = "number"',
        "30",
        "1e300",
    ),
    "a whole number that float32 rounds": (
        "age = {range = [0, 1e9]}",
        'age = "number"',
        "30",
        "16777217",
    ),
    "before the first day": (
        'age = {dates = ["2020-01-01", "2020-12-31"], outside = "clip"}',
        'age = {dates = ["2020-01-01", "2020-12-31"]}',
        "2020-05-01",
        "1999-05-01",
    ),
    "a level that is written like a missing value": (
        'age = {levels = ["young", "NA"]}',
        'age = {levels = ["young"], other = true}',
        "young",
        "NA",
    ),
}


@pytest.fixture(params=ORACLES)
def oracle(request: pytest.FixtureRequest) -> tuple[str, str, str, str]:
    return ORACLES[request.param]


def answer(hospitals: Hospitals, own: str, wanted: str, cell: str) -> tuple[str, list[str]]:
    """What amber says to a trial when this is in its table, and what went wrong there."""
    hospitals.state("amber", columns=own + "\n")
    (hospitals.folder / "amber.csv").write_text(f"age,dose,sex,back\n{cell},1.0,f,yes\n")
    assert hospitals.member("amber").check() == 1  # it is as stated
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, columns=wanted + "\n"))
    line = MemberLine(hospitals, gone={"birch", "cedar"})
    try:
        said = hospitals.server().try_over(line, Federation.from_settings(hospitals.folder / "there.toml"))["amber"]
    finally:
        line.close()
    return said, list(map(str, line.failed))


def test_all_rows_that_are_as_stated_get_the_same_answer(oracle: tuple[str, str, str, str], tmp_path: Path) -> None:
    own, wanted, one, other = oracle
    hospitals = Hospitals(tmp_path)
    said, failed = answer(hospitals, own, wanted, one)
    assert (said, failed) == answer(hospitals, own, wanted, other)
    assert failed == []
    assert said not in ("yes", "no answer")


def test_control_reading_the_rows_as_wanted_tells_them_apart(tmp_path: Path) -> None:
    schema = {"age": {"range": [0, 120]}}
    wanted = Columns(label="back", client="", classes=("no", "yes"), schema=schema).resolved(())
    clipped = {"age": {"range": [0, 120], "outside": "clip"}}
    own = Columns(label="back", client="", classes=("no", "yes"), schema=clipped).resolved(())
    with pytest.raises(ConfigError, match="values beyond the range are clipped here"):
        agreed(wanted, own)
    (tmp_path / "t.csv").write_text("age,back\n500,yes\n")
    read_table(tmp_path / "t.csv", own)
    with pytest.raises(DataError, match="outside of the stated range"):
        read_table(tmp_path / "t.csv", wanted)
