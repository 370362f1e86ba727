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
