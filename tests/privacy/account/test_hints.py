import json
import math
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from incrowd.privacy.account import hints
from incrowd.privacy.account.hints import keep, recall

QUESTION = ["PLD", 1e-4, {"b": 1, "a": 2}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INCROWD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_was_kept_is_recalled_to_the_last_bit(folder: Path) -> None:
    assert recall(QUESTION) is None
    keep(QUESTION, 0.1 + 0.2)
    assert recall(["PLD", 1e-4, {"a": 2, "b": 1}]) == 0.1 + 0.2
    assert recall(["RDP", 1e-4, {"b": 1, "a": 2}]) is None
    keep(QUESTION, 7)
    assert recall(QUESTION) == 7.0
    assert stat.S_IMODE(entry(folder).stat().st_mode) == 0o600
    assert json.loads(entry(folder).read_text())["value"] == 7.0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_price_is_not_kept(folder: Path, value: float) -> None:
    keep(QUESTION, value)
    assert recall(QUESTION) is None
    assert not folder.exists()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1.0", '"1.0"', "true", "null", "1", "[]", "1" * 5000])
def test_what_is_no_price_is_not_believed(folder: Path, value: str) -> None:
    keep(QUESTION, 5.0)
    path = entry(folder)
    path.write_text(path.read_text().replace("5.0", value))
    assert recall(QUESTION) is None
    keep(QUESTION, 5.0)
    assert recall(QUESTION) == 5.0


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"[]", b"{}", b"null", b"[" * 100_000])
def test_a_damaged_file_says_nothing_and_is_replaced(folder: Path, damage: bytes) -> None:
    keep(QUESTION, 5.0)
    entry(folder).write_bytes(damage)
    assert recall(QUESTION) is None
    keep(QUESTION, 6.0)
    assert recall(QUESTION) == 6.0


def test_an_answer_to_another_question_is_not_believed(folder: Path) -> None:
    keep(QUESTION, 5.0)
    path = entry(folder)
    keep("another", 9.0)
    (other,) = set(folder.iterdir()) - {path}
    other.replace(path)
    assert recall(QUESTION) is None


@pytest.mark.usefixtures("folder")
def test_another_version_of_the_library_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(QUESTION, 5.0)
    monkeypatch.setattr(hints, "version", lambda name: f"{name} 99")
    assert recall(QUESTION) is None


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(QUESTION, 5.0)
    monkeypatch.setenv("INCROWD_CACHE", "off")
    assert recall(QUESTION) is None
    keep(QUESTION, 6.0)
    monkeypatch.setenv("INCROWD_CACHE", str(folder))
    assert recall(QUESTION) == 5.0


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_place_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    keep(QUESTION, 5.0)
    for place in (folder, folder.parent, entry(folder)):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(mode)
        assert recall(QUESTION) is None
        place.chmod(before)
        assert recall(QUESTION) == 5.0
    folder.parent.chmod(mode)
    keep("another", 6.0)
    folder.parent.chmod(0o700)
    assert recall("another") is None


def test_a_number_that_was_changed_is_not_believed(folder: Path) -> None:
    keep(QUESTION, 5.0)
    path = entry(folder)
    whole = json.loads(path.read_text())
    for change in ({"value": 5.1}, {"checksum": "0" * 64}, {"more": 1}):
        path.write_text(json.dumps(whole | change))
        assert recall(QUESTION) is None
    path.write_text(json.dumps(whole))
    assert recall(QUESTION) == 5.0


def test_where_nothing_can_be_written_nothing_happens(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("no folder")
    monkeypatch.setenv("INCROWD_CACHE", str(blocker / "cache"))
    keep(QUESTION, 5.0)
    assert recall(QUESTION) is None
    monkeypatch.setenv("INCROWD_CACHE", str(folder))
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    keep(QUESTION, 5.0)
    assert recall(QUESTION) is None
    assert list(folder.iterdir()) == []


def test_the_folder_follows_the_users_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INCROWD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    keep(QUESTION, 5.0)
    assert entry(tmp_path / "xdg" / "incrowd").suffix == ".json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    keep(QUESTION, 5.0)
    assert entry(tmp_path / "home" / ".cache" / "incrowd").suffix == ".json"


def write_many(folder: str) -> None:
    os.environ["INCROWD_CACHE"] = folder
    for number in range(200):
        assert recall(["shared", number % 5]) in (None, float(number % 5))
        keep(["shared", number % 5], float(number % 5))


def test_several_processes_share_a_folder(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_many, args=(str(folder),)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [recall(["shared", number]) for number in range(5)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(list(folder.iterdir())) == 5
