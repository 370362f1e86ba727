import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scripts import tour
from scripts._common import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_prints_and_shows_what_is_stored() -> None:
    again = subprocess.run(
        [sys.executable, "-m", "scripts.tour", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (again.returncode, again.stderr) == (0, "")


def test_notebook_page_and_pictures_are_those_of_the_file() -> None:
    assert tour.stale() == []
    assert sum(1 for _ in tour.pictures(tour.stored())) == 6
    assert all(len(png) < 60_000 for _, png in tour.pictures(tour.stored()))


def test_the_notebook_names_no_place_and_no_time() -> None:
    kept = tour.stored()
    words = "\n".join(cell["source"] + tour.printed(cell) for cell in kept["cells"])  # pictures spell anything
    for place in (str(ROOT), str(Path.home()), tempfile.gettempdir()):
        assert place not in words
    assert {key for cell in kept["cells"] for key in cell["metadata"]} == set()


def test_what_a_run_does_otherwise_is_told() -> None:
    kept = tour.stored()
    other = copy.deepcopy(kept)
    prints = next(cell for cell in other["cells"] if tour.printed(cell))
    stream = next(each for each in prints["outputs"] if each["output_type"] == "stream")
    stream["text"] = "nothing of the kind\n"
    shows = next(cell for cell in other["cells"] if any("data" in each for each in cell.get("outputs", ())))
    shows["outputs"] = [each for each in shows["outputs"] if "data" not in each]
    assert tour.differences(kept, kept) == []
    assert [found.split()[1] for found in tour.differences(kept, other)].count("prints") == 1
    assert sum("pictures" in found for found in tour.differences(kept, other)) == 1


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("right 92% of 1,000", "right 92% of 1,000", True),
        ("noise 0.3145", "noise 0.3146", True),
        ("noise 31.45", "noise 33.45", False),
        ("spent 8.00", "saved 8.00", False),
        ("1 2", "1", False),
        ("right 62.3%", "right 62.9%", True),
        ("right 62.3%", "right 64.3%", False),
        ("right 62.3%", "right 62.3", False),
        ("noise 0.0003", "noise 0.0090", False),
        ("100 of 100 clients", "101 of 100 clients", False),
        ("spent 8.00 of 8", "spent 8.08 of 8", False),
        ("(8, 0.001)-differentially", "(8, 0.009)-differentially", False),
    ],
)
def test_numbers_may_differ_by_little_and_words_may_not(before: str, now: str, same: bool) -> None:
    assert tour.alike(before, now) is same


def test_a_cell_too_many_is_told() -> None:
    kept = tour.stored()
    assert tour.differences(kept, kept | {"cells": [*kept["cells"], kept["cells"][-1]]}) != []


def test_help_runs_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tour", "--help"])
    monkeypatch.setattr(tour, "SOURCE", ROOT / "no such file")
    with pytest.raises(SystemExit, match="0"):
        tour.main()


def test_a_file_becomes_cells() -> None:
    made = tour.notebook("# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1\nprint(x)\n")
    words, code = made["cells"]
    assert (words["cell_type"], words["source"]) == ("markdown", "# Title\n\nWords.")
    assert (code["cell_type"], code["source"]) == ("code", "x = 1\nprint(x)")
    assert tour.page(made).count("code-block") == 1
