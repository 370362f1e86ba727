import os
import threading
import time
from pathlib import Path

import pytest

from incrowd import _files
from incrowd.errors import DataError
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import killed_at


def test_a_file_is_replaced_in_full(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _files.write(path, "first")
    _files.write(path, b"second")
    assert path.read_bytes() == b"second"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
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


@pytest.mark.parametrize("mask", [0, 0o077, 0o777])
def test_whatever_the_umask_is_only_the_user_may_look(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        _files.folder(tmp_path / "deep" / "folder")
        place = tmp_path / "deep" / "folder"
        _files.write(place / "written", "x")
        _files.append(place / "added", "x")
        _files.append(place / "added", "y")
        _files.create(place / "made")
        with _files.alone(place / "lock", what="is here"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "deep").rglob("*")}
    assert modes == {"folder": 0o700, "written": 0o600, "added": 0o600, "made": 0o600, "lock": 0o600}
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700
    assert (place / "added").read_text() == "xy"
    (tmp_path / "theirs/inner").mkdir(parents=True, mode=0o755)  # what others made is closed to others
    (tmp_path / "theirs/inner/file").touch(mode=0o644)
    _files.close_to_others(tmp_path / "theirs")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "theirs").rglob("*")} == {0}


def test_a_link_in_the_place_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / f"file{_files.PART}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        _files.write(tmp_path / "file", "x")
    assert not (tmp_path / "elsewhere").exists()


def test_files_links_and_folders_are_removed_and_what_cannot_be_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("link", "folder", "file", "absent", "absent/too"):
        _files.remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept/file").exists()

    def stuck(_: Path) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("shutil.rmtree", stuck)
    with pytest.raises(DataError, match=r"kept must not be kept, and cannot be removed \(not yours\)"):
        _files.remove(tmp_path / "kept")


def test_a_turn_is_one_at_a_time_among_threads_and_files(tmp_path: Path) -> None:
    """Each thread has a turn of its own over the same file, as two processes have."""
    inside, most = [0], [0]

    def work(turn: _files.Turn) -> None:
        for _ in range(30):
            with turn, turn:  # who holds it may take it again
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0002)
                inside[0] -= 1

    shared = _files.Turn(None)
    for turns in ([_files.Turn(tmp_path / "lock") for _ in range(3)], [shared] * 3):
        threads = [threading.Thread(target=work, args=(turn,)) for turn in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1]


def test_a_lock_that_is_taken_says_so(tmp_path: Path) -> None:
    first = _files.take(tmp_path / "lock", wait=False)
    assert first is not None
    assert _files.take(tmp_path / "lock", wait=False) is None
    os.close(first)
    second = _files.take(tmp_path / "lock")
    assert second is not None
    os.close(second)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    turn = _files.Turn(tmp_path / "nowhere" / "lock")  # which cannot be made, so that it is nobody's
    for _ in range(2):
        with pytest.raises(FileNotFoundError), turn:
            pass
    (tmp_path / "nowhere").mkdir()
    with turn:
        assert _files.take(tmp_path / "nowhere" / "lock", wait=False) is None
