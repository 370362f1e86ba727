import sys
from pathlib import Path

import pytest

from scripts.smoke import run


def test_a_command_that_fails_ends_the_smoke_test() -> None:
    with pytest.raises(SystemExit, match="exit status 3"):
        run(sys.executable, "-c", "raise SystemExit(3)")


def test_a_command_runs_in_its_folder_and_gives_its_output(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", "import os; print(os.getcwd())", folder=tmp_path) == f"{tmp_path}\n"
