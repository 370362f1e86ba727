"""Processes that end with their parent.

A child checks four times a second that its parent is still the same process, and ends otherwise. This needs nothing of
the parent, so it holds after SIGKILL, and from any thread.
"""

import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from incrowd import _files

_ASK = 0.25
_TIME_TO_STOP = 2.0


class Child:
    """A child process whose output goes to a file.

    Guarantee: it ends soon after this process does, killed or not; after `stop` it has ended. It writes files that only
    this user can read, and no core dump.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        _files.write(log, b"")
        with log.open("ab") as words:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # keys typed at a terminal are for the parent, which then stops it
            )

    @property
    def process_id(self) -> int:
        """Its number, which is also the number of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and all that it started; a second time is fine."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_TIME_TO_STOP)
        self._signal(signal.SIGKILL)  # also what it left behind in its group
        self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process_id, number)


def end_with(parent: int) -> None:
    """End this process when its parent ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ASK)
        os._exit(1)  # no caller is left, and no clean-up is needed

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def _main(parent: str, module: str, *arguments: str) -> None:
    end_with(int(parent))
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    importlib.import_module(module).main(list(arguments))


if __name__ == "__main__":
    _main(*sys.argv[1:])
