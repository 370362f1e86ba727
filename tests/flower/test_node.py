import os
import threading
from pathlib import Path

import pytest

from incrowd import _files
from incrowd.errors import ConfigError
from incrowd.flower.node import Answers, Connection, attend
from incrowd.parties.keys import new_authority, new_party
from tests.flower.deployment import free_port


def test_answers_are_found_again_in_another_life(tmp_path: Path) -> None:
    Answers(tmp_path / "answers").keep(b"question", b"answer")
    assert Answers(tmp_path / "answers").find(b"question") == b"answer"
    assert Answers(tmp_path / "answers").find(b"another") is None


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


@pytest.mark.parametrize("address", ["", "here", "here:", ":9092", "here:0", "here:70000", "here:x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        Connection(address, tmp_path, tmp_path)
