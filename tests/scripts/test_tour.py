import copy
import subprocess
import sys
import tempfile

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
    text = tour.NOTEBOOK.read_text()
    assert str(ROOT) not in text
    assert tempfile.gettempdir() not in text
    assert "execution" not in text.replace("execution_count", "")


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
    ],
)
def test_numbers_may_differ_by_a_hundredth_and_words_may_not(before: str, now: str, same: bool) -> None:
    assert tour.alike(before, now) is same


def test_a_file_becomes_cells() -> None:
    made = tour.notebook("# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1\nprint(x)\n")
    words, code = made["cells"]
    assert (words["cell_type"], words["source"]) == ("markdown", "# Title\n\nWords.")
    assert (code["cell_type"], code["source"]) == ("code", "x = 1\nprint(x)")
    assert tour.page(made).count("code-block") == 1
