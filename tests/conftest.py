"""Fixtures for tests of every room."""

import signal
from collections.abc import Iterator

import pytest

from incrowd.learning import threads


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
