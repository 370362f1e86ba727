import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from incrowd import _files
from incrowd.errors import ConfigError
from incrowd.flower.keys import new_authority, new_party
from incrowd.flower.node import Answers, Connection, attend
from tests.flower.deployment import free_port


def test_answers_are_found_again_in_another_life(tmp_path: Path) -> None:
    Answers(tmp_path / "answers").keep(b"question", b"answer")
    assert Answers(tmp_path / "answers").find(b"question") == b"answer"
    assert Answers(tmp_path / "answers").find(b"another") is None


def test_only_this_user_can_read_them(tmp_path: Path) -> None:
    Answers(tmp_path / "answers").keep(b"question", b"answer")
    (file,) = (tmp_path / "answers").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_latest_are_kept(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "answers", kept=2)
    for number in range(4):
        answers.keep(bytes([number]), b"answer")
        os.utime(max((tmp_path / "answers").iterdir(), key=lambda file: file.stat().st_mtime_ns), (number, number))
    assert [answers.find(bytes([number])) is not None for number in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("content", [b"", b"x" * 20, b"x" * 100])
def test_one_that_was_damaged_is_not_there(tmp_path: Path, content: bytes) -> None:
    answers = Answers(tmp_path / "answers")
    answers.keep(b"question", b"answer")
    (file,) = (tmp_path / "answers").iterdir()
    file.write_bytes(content)
    assert answers.find(b"question") is None


def connection(folder: Path) -> Connection:
    new_authority(folder / "server")
    new_party(folder / "amber", "amber")
    return Connection(f"127.0.0.1:{free_port()}", folder / "server" / "ca.crt", folder / "amber")


def test_a_second_process_for_the_same_party_is_refused(tmp_path: Path) -> None:
    found = connection(tmp_path)
    lock = _files.take(tmp_path / "amber" / "lock")
    assert lock is not None
    with pytest.raises(ConfigError, match="another process attends"):
        attend(found, bytes, threading.Event())
    os.close(lock)


def test_who_is_not_asked_looks_less_and_less_often(tmp_path: Path) -> None:
    found = replace(connection(tmp_path), poll=0.25, idle_poll=2.0)
    waited = [found.poll]
    while waited[-1] < 2.0:
        waited.append(found.longer(waited[-1]))
        assert len(waited) < 100
    assert waited == sorted(waited)
    assert found.longer(2.0) == 2.0
    assert replace(found, idle_poll=0.1).longer(0.25) == 0.25
    with pytest.raises(ConfigError, match="idle_poll = 0"):
        replace(found, idle_poll=0)


def test_where_no_server_is_a_party_waits_until_it_is_told_to_stop(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    attend(connection(tmp_path), bytes, stop)


@pytest.mark.parametrize("address", ["", "here", "here:", ":9092", "here:0", "here:70000", "here:x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        Connection(address, tmp_path, tmp_path)
