"""Every example, killed once in the middle and started again, ends with its result and its statement."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.runs.waiting import until

OTHERS = {"draw_and_discard"}  # it has no rounds, and a test of its own
EXAMPLES = Path(__file__).parents[2] / "examples"
FEDERATIONS = sorted(
    path for path in EXAMPLES.glob("*.py") if "sys.argv" in path.read_text() and path.stem not in OTHERS
)


def rounds_in(folder: Path) -> int:
    """The number of rounds that are over."""
    if not (folder / "run.sqlite").exists():
        return 0
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        try:
            return int(connection.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])
        except sqlite3.OperationalError:  # its tables are not there yet
            return 0


@pytest.mark.slow
@pytest.mark.parametrize("example", FEDERATIONS, ids=lambda path: path.stem)
def test_killed_once_and_started_again_it_ends_with_its_result(example: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(example), str(tmp_path / "run")]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    folders = tmp_path / "run", tmp_path / "run" / "party"  # the first of an example with several runs
    until(lambda: any(rounds_in(folder) >= 2 for folder in folders), seconds=100)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    run = next(folder for folder in folders if (folder / "run.sqlite").exists())
    assert not (run / "summary.json").exists()
    again = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    assert "going on after round" in again.stderr
    assert "epsilon" in again.stdout
    assert (run / "summary.json").exists()


def test_the_examples_are_those_of_the_pages() -> None:
    assert {path.stem for path in FEDERATIONS} >= {"own_module", "images", "tokens", "fine_tuning", "hospitals"}
