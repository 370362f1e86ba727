"""`incrowd reproduce`, as a user meets it."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.command import Command


@pytest.mark.slow
def test_one_json_object_on_standard_output_and_progress_beside_it(
    reproduce: Command, folder: Path, tmp_path: Path
) -> None:
    table1 = partial(reproduce, "geyer-table1")
    quick = ("--data", str(folder), "--rows", "100", "--recipe", "general", "--epsilon", "0.5,0.7", "--seeds", "1")
    finished = table1(*quick, "--json", "--plot", "table1.png")
    assert finished.status == 0
    found = json.loads(finished.out)
    assert [row["budget_epsilon"] for row in found["rows"]] == [0.5, 0.7]
    assert found["plot"] == "table1.png"
    assert (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert "general, 100 clients, epsilon 0.7" in finished.err
    assert len(list((tmp_path / "out/features").iterdir())) == 2
    table = table1(*quick)
    assert table.status == 0
    assert "trainings" in table.out
    assert "general" in table.out


@pytest.mark.slow
def test_figures_are_json_and_files(reproduce: Command, folder: Path, tmp_path: Path) -> None:
    data = ("--data", str(folder))
    first = reproduce("geyer-figure1", *data, "--rows", "100", "--epsilon", "2.5", "--rounds", "1", "--json")
    assert first.status == 0
    found = first.object()
    assert [one["epsilon"] for one in found["curves"]] == [2.5, None]
    assert [Path(file).is_file() for file in found["files"]] == [True, True]
    second = reproduce("geyer-figure2", *data, "--rounds", "2", "--out", "pictures")
    assert second.status == 0
    assert "between client variance" in second.out
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["geyer-figure2.png", "geyer-figure2.svg"]


@pytest.mark.slow
def test_growing_cohorts_are_two_tables(reproduce: Command, folder: Path) -> None:
    growing = partial(reproduce, "geyer-growing", "--data", str(folder))
    quick = ("--factors", "0.25", "--epsilon", "3.5", "--seeds", "1")
    assert growing(*quick, "--json").object().keys() == {"early", "whole"}
    shown = growing(*quick)
    assert shown.status == 0
    assert "early:" in shown.out
    assert "whole:" in shown.out
    assert growing("--rows", "99").status == 2
