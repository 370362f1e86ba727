"""nginx for tests: started in a folder of its own, on loopback, and stopped with the test."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

missing = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None
    and "INCROWD_ALL_TESTS" not in os.environ,
    reason="nginx is not installed",
)
"""For tests that need it; where nothing may be skipped they fail without it."""


class Nginx:
    """One nginx, whose folder holds its configuration and its logs."""

    def __init__(self, folder: Path, configuration: str = "nginx.conf") -> None:
        self.folder = folder
        self._command = ["nginx", "-p", str(folder), "-e", "logs/error.log", "-c", configuration]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, port: int) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(  # a program of the system
            [*self._command, "-g", "daemon off;"], env=_environment(), stderr=subprocess.PIPE
        )
        wait_for_port(port, self._process)

    def reload(self) -> None:
        """Read the configuration anew, and wait until the new worker is there and the old one has gone."""
        before = set(self.workers())
        subprocess.run([*self._command, "-s", "reload"], env=_environment(), check=True, timeout=30)  # as above
        end = time.monotonic() + 40
        while (not set(self.workers()) - before or before & set(self.workers())) and time.monotonic() < end:
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """The processes that serve connections."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(each) for each in children.read_text().split()]

    def crash(self, port: int) -> None:
        """Kill it with all its processes, and start another one as the service manager does: without its sockets."""
        assert self._process is not None
        for process in (self._process.pid, *self.workers()):
            os.kill(process, signal.SIGKILL)
        self.stop()
        for left in self.folder.glob("*.sock"):
            left.unlink()
        self.start(port)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def running(folder: Path, port: int, configuration: str = "nginx.conf") -> Iterator[Nginx]:
    """One that runs as long as the block."""
    nginx = Nginx(folder, configuration)
    try:
        nginx.start(port)
        yield nginx
    finally:
        nginx.stop()


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    """Wait until somebody listens at a port of loopback, or the process has ended, which is an error."""
    end = time.monotonic() + seconds
    while not _listened_at(port):
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError((process.stderr.read() if process.stderr else b"").decode() or "nothing listens")
        time.sleep(0.05)


def _listened_at(port: int) -> bool:
    """Whether a socket listens there, without a connection to it, which would be counted."""
    wanted = f":{port:04X}"
    lines: Sequence[str] = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in lines)


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}
