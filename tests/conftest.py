"""Fixtures for tests of every room."""

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd.learning import threads


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test spends on some data, no other test has spent. The folder is made by whoever needs it."""
    monkeypatch.setenv("INCROWD_STATE", str(Path(os.environ["INCROWD_STATE"]) / secrets.token_hex(4)))


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
    with threads.one_thread():
        yield
