"""Processes that kill themselves with SIGKILL at a chosen place: nothing is cleaned up, as in a crash."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class Place(NamedTuple):
    """The entry ("call") or the end ("return") of a function, when it is reached for the n-th time."""

    file: str
    function: str
    happening: str
    time: int = 1


def killed_at(file: str, line: int, work: Callable[[], object]) -> None:
    """Work until the n-th executed line of files whose path has `file` in it."""
    left = line

    def trace(frame: FrameType, happening: str, _: object) -> Any:
        nonlocal left
        if file not in frame.f_code.co_filename:
            return None
        if happening == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    _traced(trace, work)


def killed_in(place: Place, work: Callable[[], object]) -> None:
    """Work until a place is reached."""
    left = place.time

    def trace(frame: FrameType, happening: str, _: object) -> Any:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.endswith(place.file) or code.co_name != place.function:
            return None
        if happening == place.happening:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    _traced(trace, work)


def _traced(trace: Callable[[FrameType, str, Any], Any], work: Callable[[], object]) -> None:
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
