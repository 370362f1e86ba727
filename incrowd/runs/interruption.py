"""Interruptions that are not lost, where Python would drop them."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_A_MOMENT = 0.01  # seconds


@contextmanager
def again_where_dropped(number: int = signal.SIGINT) -> Iterator[None]:
    """Python drops what is raised in a finalizer or in a weak reference's callback: an interruption that it drops in
    here comes once more a moment later, as the signal of this number, and no word is printed about it.

    Edge cases: other errors that Python drops are told as ever.
    """
    told = sys.unraisablehook

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(_A_MOMENT, os.kill, (os.getpid(), number)).start()
        else:
            told(what)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = told


@contextmanager
def interrupted_later() -> Iterator[None]:
    """An interruption waits until this is over: while Python forks it would be dropped between two steps that belong
    together.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
