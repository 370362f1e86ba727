"""Fixtures for tests of every room."""

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.learning.execution import with_threads
from tests.command import Command, command


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test spends on some data, no other test has spent. The folder is made by whoever needs it."""
    monkeypatch.setenv("INCROWD_STATE", str(Path(os.environ["INCROWD_STATE"]) / secrets.token_hex(4)))


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever started the tests may have told them, and so the processes they start, to ignore interruptions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """With another number of threads last digits differ; and a forked child, which has none of the threads that torch
    may have started here, must not wait for them.
    """
    with with_threads(1):
        yield


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a path belong to somebody else: really, where the tests may, or by being somebody else."""
    stranger = 12345

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, stranger, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: stranger)

    return give
