"""Load on a service whose server is killed and started again, many times: what was acknowledged, and what is gone."""

import asyncio
import bisect
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from contest.peak import processors
from contest.service import redis_on, specification
from harness import processes

SLACK_S = 2.0
"""A keep begins when the interval is over, and takes its time."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """One server, from its start until it was killed."""

    acknowledged: int
    lost: int
    allowed: int
    down_s: float
    memory_mb: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class StormReport:
    """What became of a storm. `allowed` is what was acknowledged within the interval before each kill."""

    store: str
    lives: tuple[Life, ...]

    @property
    def kept_its_word(self) -> bool:
        """Whether nothing is gone that should be there."""
        return all(life.lost <= life.allowed for life in self.lives)

    @property
    def growth_mb(self) -> float:
        """How much more memory the last half of the longest life took than its first, at the median."""
        longest = max((life.memory_mb for life in self.lives), key=len)
        half = len(longest) // 2
        return float(np.median(longest[half:]) - np.median(longest[half // 4 : half])) if half >= 4 else 0.0

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        return {
            "store": self.store,
            "kills": len(self.lives) - 1,
            "acknowledged": sum(life.acknowledged for life in self.lives),
            "lost": sum(life.lost for life in self.lives),
            "allowed": sum(life.allowed for life in self.lives),
            "kept_its_word": self.kept_its_word,
            "longest_down_s": max(life.down_s for life in self.lives),
            "memory_growth_mb": self.growth_mb,
            "lives": [asdict(life) for life in self.lives],
        }


@dataclass(frozen=True, kw_only=True)
class Storm:
    """So many seconds with so many kills in between, and load all the time.

    `redis_kills` kills the Redis, too, each time.
    """

    seconds: float
    kills: int = 10
    redis: bool = False
    redis_kills: bool = False
    weights: int = 387
    keep_every: float = 1.0
    connections: int = 8

    def run(self, say: Callable[[str], object] = lambda _: None) -> StormReport:
        """Measure; `say` hears of the progress."""
        return asyncio.run(self._run(say))

    async def _run(self, say: Callable[[str], object]) -> StormReport:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="incrowd-storm-")))
            first = processors()[0]
            server = _StormServer(folder, self)
            stack.callback(server.kill)
            database = stack.enter_context(redis_on(folder, first)) if self.redis else None
            await asyncio.to_thread(server.start)
            load = _Load(self.weights, server.port)
            devices = [asyncio.create_task(load.device(number)) for number in range(self.connections)]
            lives, before, down = list[Life](), 0, 0.0
            for kill in range(self.kills + 1):
                memory = await self._live(server)
                load.paused.clear()
                moment = asyncio.get_running_loop().time()
                server.kill()
                await asyncio.sleep(0.3)  # replies that are on their way are read
                if database is not None and self.redis_kills:
                    os.kill(database, signal.SIGKILL)
                    await asyncio.sleep(0.2)
                    database = stack.enter_context(redis_on(folder, first))
                acknowledged = len(load.times)
                window = 0.0 if self.redis else self.keep_every + SLACK_S
                allowed = acknowledged - bisect.bisect(load.times, moment - window) if window else 0
                await asyncio.to_thread(server.start)
                there = await asyncio.to_thread(server.accepted)
                down = asyncio.get_running_loop().time() - moment
                acked = acknowledged - load.counted
                lost = max(0, before + acked - there)
                lives.append(Life(acknowledged=acked, lost=lost, allowed=allowed, down_s=down, memory_mb=memory))
                load.counted, before = acknowledged, there
                load.paused.set()
                say(f"{kill + 1} of {self.kills + 1}: {acked} acknowledged, {lost} lost, {allowed} allowed")
            for device in devices:
                device.cancel()
            await asyncio.gather(*devices, return_exceptions=True)
        return StormReport(store="redis" if self.redis else "memory", lives=tuple(lives))

    async def _live(self, server: "_StormServer") -> tuple[float, ...]:
        """One life, and the memory of the server meanwhile."""
        memory, each = [], self.seconds / (self.kills + 1)
        ends = asyncio.get_running_loop().time() + each
        while asyncio.get_running_loop().time() < ends:
            await asyncio.sleep(min(each / 40, 1.0))
            memory.append(server.memory_mb())
        return tuple(memory)


class _StormServer:
    def __init__(self, folder: Path, storm: Storm) -> None:
        path = folder / "spec.json"
        path.write_text(specification(storm.weights).to_json())
        self._command = [
            sys.executable,
            "-m",
            "incrowd",
            "serve",
            str(path),
            "--json",
            "--remember-mb",
            "2",
            "--open-admission",
        ]
        self._command += ["--keep-every", str(storm.keep_every)]
        self._command += ["--store", f"unix://{folder}/redis.sock"] if storm.redis else []
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([*self._command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self.port = int(json.loads(self._process.stdout.readline())["url"].rsplit(":", 1)[1])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def accepted(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status.json") as reply:
            count: int = json.loads(reply.read())["accepted"]
        return count

    def memory_mb(self) -> float:
        return processes.memory(self._process.pid)["resident"] / 1e6 if self._process else 0.0


class _Load:
    """Devices that go on whatever happens to the server; when each acknowledgement came."""

    def __init__(self, weights: int, port: int) -> None:
        asked = specification(weights)
        self._asked, self._port, self._size = asked, port, 4 * weights
        generator = np.random.Generator(np.random.SFC64(7))
        self._noise = (asked.gamma * asked.mechanism.noise_scale * generator.laplace(size=2**18 + weights)).astype(
            "<f4"
        )
        self.times: list[float] = []
        self.counted = 0
        self.paused = asyncio.Event()
        self.paused.set()

    async def device(self, number: int) -> None:
        """One connection after the other, an answer after the other."""
        generator = np.random.Generator(np.random.SFC64(number))
        loop = asyncio.get_running_loop()
        while True:
            await self.paused.wait()
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
                try:
                    await self._answers(reader, writer, generator, loop)
                finally:
                    writer.close()
            await asyncio.sleep(0.05)

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        generator: np.random.Generator,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        drawn: tuple[str, bytes] | None = None
        while self.paused.is_set():
            if drawn is None:
                writer.write(b"GET /v1/draw HTTP/1.1\r\nhost: storm\r\n\r\n")
            else:
                start = int(generator.integers(2**18))
                row = np.frombuffer(drawn[1], "<f4") + self._noise[start : start + self._size // 4]
                head = f"POST /v1/answer HTTP/1.1\r\nhost: storm\r\nincrowd-fingerprint: {self._asked.fingerprint}\r\n"
                head += f"incrowd-ticket: {drawn[0]}\r\ncontent-length: {self._size}\r\n\r\n"
                writer.write(head.encode() + row.astype("<f4").tobytes())
            head_back = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = dict(line.split(": ", 1) for line in head_back.split("\r\n")[1:-2])
            body = await reader.readexactly(int(headers["content-length"]))
            if drawn is not None and headers.get("incrowd-outcome") == "accepted":
                self.times.append(loop.time())
            drawn = (headers["incrowd-ticket"], body) if head_back[9:12] == "200" else None
