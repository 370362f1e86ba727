from pathlib import Path

import pytest

from scripts._common import finish, python_files


def test_problems_are_printed_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        finish(["this is wrong", "that too"])
    assert end.value.code == 1
    assert capsys.readouterr().err == "this is wrong\nthat too\n"


def test_no_problem_is_success() -> None:
    with pytest.raises(SystemExit) as end:
        finish([])
    assert end.value.code == 0


def test_python_files_are_found_at_any_depth_and_a_missing_folder_is_empty(tmp_path: Path) -> None:
    (tmp_path / "incrowd/privacy").mkdir(parents=True)
    inner, outer, other = (tmp_path / "incrowd" / name for name in ("privacy/a.py", "b.py", "notes.md"))
    for path in (inner, outer, other):
        path.touch()
    assert list(python_files(tmp_path, ["incrowd", "nowhere"])) == [outer, inner]
