"""`incrowd flower simulate` beside our engine on this machine and Flower's own simulation, in one run, in turns."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from contest.compare import Competitor, differences
from contest.flower import Flower, FlowerProcess
from contest.ours import Ours
from contest.peak import describe, processors
from contest.simulated import Assignment, Place, RunProcess
from contest.works import WORKS, Task, Work
from harness import checks, processes
from harness.results import markdown
from incrowd import ConfigError, IncrowdError
from incrowd.learning import one_thread

HERE, SIMULATED, FLOWER, INTRODUCED = "incrowd train", "incrowd flower simulate", "flower", "flower as introduced"
WORKER = "ray::ClientAppActor"
MODELS = ("linear", "mlp600", "own-cnn")


@dataclass(frozen=True, kw_only=True)
class Line:
    """How fast one way is at one work: of so many rounds the median and the shortest, by the clock, and the processor
    time of a round, of all processes; and the memory of one of Ray's workers, None where there are none.
    """

    work: str
    workers: int
    name: str
    rounds: int
    seconds: float
    shortest: float
    processor_seconds: float
    worker_memory: Mapping[str, float] | None

    def row(self, ratios: Mapping[str, float]) -> dict[str, object]:
        """For people."""
        memory = self.worker_memory
        return {
            "work": self.work,
            "workers": self.workers,
            "": self.name,
            "s/round": f"{self.seconds:.3f}",
            "shortest": f"{self.shortest:.3f}",
            "processor s/round": f"{self.processor_seconds:.3f}",
            "MB a worker (its share, its own)": ""
            if memory is None
            else f"{memory['proportional'] / 1e6:.0f}, {memory['private'] / 1e6:.0f}",
            "times simulate's (shortest, processor)": ""
            if not ratios
            else f"{ratios['shortest']:.2f}, {ratios['processor']:.2f}",
        }


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """Everything that was found. `same` says of each work whether both of our runs released the same bits."""

    lines: Sequence[Line]
    same: Mapping[str, bool]
    machine: Mapping[str, object]

    @property
    def ratios(self) -> dict[str, dict[str, float]]:
        """The others' seconds divided by those of `incrowd flower simulate`: medians, shortest, processor time."""
        found = {}
        for ours in (one for one in self.lines if one.name == SIMULATED):
            for other in self.lines:
                if (other.work, other.workers) == (ours.work, ours.workers) and other is not ours:
                    found[f"{ours.work} {ours.workers} {other.name}"] = {
                        "median": other.seconds / ours.seconds,
                        "shortest": other.shortest / ours.shortest,
                        "processor": other.processor_seconds / ours.processor_seconds,
                    }
        return found

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        lines = [asdict(line) for line in self.lines]
        return {"results": lines, "ratios": self.ratios, "same": dict(self.same), "machine": dict(self.machine)}

    def to_text(self) -> str:
        """A table in Markdown, and what belongs to it."""
        ratios = self.ratios
        rows = [one.row(ratios.get(f"{one.work} {one.workers} {one.name}", {})) for one in self.lines]
        told = ", ".join(f"{name}: {'the same bits' if same else 'OTHER BITS'}" for name, same in self.same.items())
        facts = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.machine.items())
        return "\n".join([*markdown(rows, left={"work", ""}), "", f"Both runs of ours released: {told}.", f"{facts}."])


@dataclass(frozen=True, kw_only=True)
class SimulationContest:
    """What to measure: works at each number of workers, in batches of one size, for so many rounds after two others."""

    works: Sequence[Work] = field(default_factory=lambda: [WORKS[name] for name in MODELS])
    workers: Sequence[int] = (1, 2)
    batch_size: int = 10
    folder: Path | None = None
    rounds: int = 5

    def __post_init__(self) -> None:
        checks.count(rounds=self.rounds, batch_size=self.batch_size)
        for number in self.workers:
            checks.count(workers=number)
            checks.at_most(len(processors()), "the number of processors", workers=number)
        for package in ("flwr", "ray"):
            if find_spec(package) is None:
                raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[flower]' brings it")

    def run(self, say: Callable[[str], object] = lambda _: None) -> SimulationReport:
        """Measure; `say` hears of the progress."""
        lines, same = list[Line](), dict[str, bool]()
        for work in self.works:
            task = Task(work=work, batch_size=self.batch_size, folder=self.folder)
            for workers in self.workers:
                say(f"{task.name}, {workers} workers: {HERE}, {SIMULATED}, {FLOWER}, {INTRODUCED}")
                with _players(task, workers, self.rounds) as players:
                    lines += [player.line(task, workers) for player in _in_turns(players, self.rounds)]
                    same[f"{task.name} {workers}"] = players[0].digest() == players[1].digest()
        machine = describe() | {"data": "synthetic" if self.folder is None else "MNIST"}
        return SimulationReport(lines=lines, same=same, machine=machine)


class _Player:
    """Whoever takes rounds in processes of its own: what it took for each."""

    def __init__(
        self, name: str, take: Callable[[int], float], *, process: int, digest: Callable[[], str] | None = None
    ) -> None:
        self.name = name
        self.digest = digest or (lambda: "")
        self._take, self.process = take, process
        self._seconds: list[float] = []
        self.processor: list[float] = []

    def round(self, number: int) -> None:
        """Take a round, while nobody else's processes do anything: Flower's look for work all the time."""
        family = processes.family(self.process)
        with processes.awake(family):
            before = processes.processor_seconds(family)
            self._seconds.append(self._take(number))
            self.processor.append(processes.processor_seconds(family) - before)

    def line(self, task: Task, workers: int) -> Line:
        """What was found, without the first two rounds, in which things are made that are kept."""
        ray = processes.called(processes.family(self.process), WORKER)
        return Line(
            work=task.name,
            workers=workers,
            name=self.name,
            rounds=len(self._seconds) - 2,
            seconds=statistics.median(self._seconds[2:]),
            shortest=min(self._seconds[2:]),
            processor_seconds=statistics.median(self.processor[2:]),
            worker_memory=processes.memory(ray[0]) if ray else None,
        )


def _in_turns(players: Sequence[_Player], rounds: int) -> Sequence[_Player]:
    """Everyone takes a round, then everyone the next, the other way round."""
    with ExitStack() as stack:
        for process in {player.process for player in players}:
            stack.enter_context(processes.asleep(processes.family(process)))
        for number in range(rounds + 2):
            for player in players if number % 2 else reversed(players):
                player.round(number)
    return players


@contextmanager
def _players(task: Task, workers: int, rounds: int) -> Iterator[list[_Player]]:
    """Everyone, started, after the sums of contributions have been compared.

    Edge cases: an error that names whoever computes something else than we do, before anything is timed.
    """
    with ExitStack() as stack:
        flower = stack.enter_context(FlowerProcess(workers=workers))
        stock = [Flower(task, flower, lean=lean) for lean in (True, False)]
        with one_thread(), closing(Ours(task)) as ours:
            others: list[Competitor] = [*stock]
            differences(task, ours, others)
        players = []
        places: list[tuple[str, Place]] = [(HERE, "here"), (SIMULATED, "on Ray")]
        for name, place in places:
            assignment = Assignment(task=task, place=place, workers=workers, rounds=rounds + 2)
            run = stack.enter_context(closing(RunProcess(assignment)))
            players.append(_Player(name, run.round, process=_started(run.number), digest=run.digest))
        players += [_Player(one.name, one.round, process=_started(flower.number)) for one in stock]
        yield players


def _started(process: int | None) -> int:
    if process is None:
        raise IncrowdError("a process that was started does not run")
    return process
