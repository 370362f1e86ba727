"""Wait for what another process does."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait until it is so, and fail if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)
