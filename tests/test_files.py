from pathlib import Path

import pytest

from incrowd import _files
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import killed_at


def test_a_file_is_replaced_in_full(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _files.write(path, "first")
    _files.write(path, b"second")
    assert path.read_bytes() == b"second"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_whenever_writing_is_cut_off_the_file_holds_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _files.write(path, "old")
    found = []
    for line in range(1, 100):
        status = status_of(start(lambda: killed_at("/incrowd/_files.py", line, lambda: _files.write(path, "new"))))  # noqa: B023 - waited for
        found.append(path.read_text())
        if status == 0:
            break
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True)  # old until the new one is complete
    assert len(found) > 8


def test_what_cannot_be_written_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _files.write(path, "old")
    (tmp_path / f"file{_files.PART}").mkdir()
    with pytest.raises(OSError, match="directory"):
        _files.write(path, "new")
    assert path.read_text() == "old"
