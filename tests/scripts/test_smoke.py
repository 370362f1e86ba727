import sys
from pathlib import Path

import pytest

from scripts.smoke import refused, run


def test_a_command_that_fails_ends_the_smoke_test() -> None:
    with pytest.raises(SystemExit, match="exit status 3"):
        run(sys.executable, "-c", "raise SystemExit(3)")


def test_a_command_runs_in_its_folder_and_gives_its_output(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", "import os; print(os.getcwd())", folder=tmp_path) == f"{tmp_path}\n"


def test_a_refusal_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    said = "import sys; print('no', file=sys.stderr); sys.exit(2)"
    assert refused(sys.executable, "-c", said, folder=tmp_path) == "no"
    for other in ("pass", "import sys; sys.exit(2)", f"print('yes'); {said}", said.replace("no", r"no\nno")):
        with pytest.raises(SystemExit, match="exit status"):
            refused(sys.executable, "-c", other, folder=tmp_path)
