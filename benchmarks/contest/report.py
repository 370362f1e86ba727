"""What came out: medians, ratios of rates, shares of the peak; for machines and for people."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from contest.works import Task
from harness.results import markdown

OURS = "incrowd"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one competitor took for each round of a task, and how far its sum of contributions was from ours."""

    name: str
    threads: int
    seconds: Sequence[float]
    difference: float


@dataclass(frozen=True, kw_only=True)
class Match:
    """One task, done by everyone.

    `overheads` holds, for each of our rounds, what it took beyond training as a share of the training; `peak` is the
    best rate of a matrix product on one thread that was seen meanwhile, in operations a second.
    """

    task: Task
    timings: Sequence[Timing]
    overheads: Sequence[float]
    peak: float


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one competitor is at one task; rates follow from the median over the rounds."""

    name: str
    work: str
    batch: int

    @property
    def task(self) -> str:
        """What was done."""
        return f"{self.work} b{self.batch}"

    @property
    def rate(self) -> float:
        """So much a second."""
        raise NotImplementedError

    @property
    def cores(self) -> int:
        """How many threads computed."""
        return 1

    def row(self) -> dict[str, str]:
        """The numbers for people, by the names of their columns."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Result(Speed):
    """How fast clients are trained.

    Operations are counted as dense training needs them, whatever was really executed: `of_peak` may exceed 1.
    """

    threads: int
    client_updates_per_second: float
    gflops: float
    of_peak: float
    seconds_per_round: float

    @classmethod
    def of(cls, task: Task, timing: Timing, *, peak: float) -> "Result":
        """The result of one competitor, beside the peak of one thread."""
        median = statistics.median(timing.seconds)
        rate = task.work.cohort / median
        operations = rate * task.work.operations
        return cls(
            name=timing.name,
            work=task.work.name,
            batch=task.batch_size,
            threads=timing.threads,
            client_updates_per_second=rate,
            gflops=operations / 1e9,
            of_peak=operations / (timing.threads * peak),
            seconds_per_round=median,
        )

    @property
    def rate(self) -> float:
        """See `Speed.rate`."""
        return self.client_updates_per_second

    @property
    def cores(self) -> int:
        """See `Speed.cores`."""
        return self.threads

    def row(self) -> dict[str, str]:
        """See `Speed.row`."""
        return {
            "threads": f"{self.threads}",
            "clients/s": f"{self.client_updates_per_second:.1f}",
            "GFLOP/s": f"{self.gflops:.1f}",
            "of the peak": f"{self.of_peak:.0%}",
            "s/round": f"{self.seconds_per_round:.3f}",
        }


@dataclass(frozen=True, kw_only=True)
class RecordResult(Speed):
    """How fast a silo trains; `difference` says how far its clipped sum is from ours, None if it does not clip."""

    records_per_second: float
    milliseconds_per_batch: float
    difference: float | None

    @classmethod
    def of(cls, task: Task, name: str, *, rates: Sequence[float], difference: float | None) -> "RecordResult":
        """The result of one competitor, from its rates in each round."""
        rate = statistics.median(rates)
        return cls(
            name=name,
            work=f"records {task.work.name}",
            batch=task.batch_size,
            records_per_second=rate,
            milliseconds_per_batch=1e3 * task.batch_size / rate,
            difference=difference,
        )

    @property
    def rate(self) -> float:
        """See `Speed.rate`."""
        return self.records_per_second

    def row(self) -> dict[str, str]:
        """See `Speed.row`."""
        return {"records/s": f"{self.records_per_second:.0f}", "ms/batch": f"{self.milliseconds_per_batch:.2f}"}


Found = TypeVar("Found", bound=Speed)


@dataclass(frozen=True, kw_only=True)
class SpeedReport(Generic[Found]):
    """Everything that was found; `skipped` says who was left out, and why."""

    results: Sequence[Found]
    skipped: Mapping[str, str]
    machine: Mapping[str, object]

    @property
    def ratios(self) -> dict[str, float]:
        """Our rate divided by another's, each on one thread; and ours on several threads by that on one."""
        ratios: dict[str, float] = {}
        for ours in (one for one in self.results if one.name == OURS and one.cores == 1):
            for other in (one for one in self.results if one.task == ours.task):
                if other.name != ours.name:
                    ratios[f"{ours.task} vs {other.name}"] = ours.rate / other.rate
                elif other.cores > 1:
                    ratios[f"{ours.task} {other.cores} threads vs 1"] = other.rate / ours.rate
        return ratios

    @property
    def remarks(self) -> list[str]:
        """What else there is to say, a line each."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, object]:
        """The report as JSON can hold it."""
        return {
            "results": [asdict(result) for result in self.results],
            "ratios": self.ratios,
            "machine": dict(self.machine),
            "skipped": dict(self.skipped),
        }

    def to_text(self) -> str:
        """The report for people: a table in Markdown, and what belongs to it."""
        left_out = [f"Left out: {name}, {reason}." for name, reason in self.skipped.items()]
        table = markdown([self._row(one) for one in self.results], left={"work", ""})
        return "\n".join([*table, "", *self.remarks, *left_out, _listed(self.machine)])

    def _row(self, one: Found) -> dict[str, object]:
        ratio = self.ratios.get(f"{one.task} vs {one.name}")
        faster = "" if ratio is None else f"{ratio:.2f}"
        if one.cores > 1:
            faster = f"{self.ratios[f'{one.task} {one.cores} threads vs 1']:.2f} times 1 thread"
        return {"work": one.work, "batch": one.batch, "": one.name, **one.row(), "incrowd is faster by": faster}


@dataclass(frozen=True, kw_only=True)
class RecordReport(SpeedReport[RecordResult]):
    """How fast silos train."""

    @property
    def remarks(self) -> list[str]:
        """See `SpeedReport.remarks`."""
        worst = max((one.difference for one in self.results if one.difference is not None), default=0.0)
        return [f"All clipped sums were compared with ours first: the largest difference is {worst:.1e}."]


@dataclass(frozen=True, kw_only=True)
class Report(SpeedReport[Result]):
    """How fast clients are trained.

    `differences` says how far a competitor's sum of contributions is from ours, relative to it; `overheads` what a
    round of ours takes beyond training, as a share of the training.
    """

    differences: Mapping[str, float]
    overheads: Mapping[str, float]
    memory: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls,
        matches: Sequence[Match],
        *,
        skipped: Mapping[str, str],
        machine: Mapping[str, object],
        memory: Mapping[str, float] | None,
    ) -> "Report":
        """Medians over the rounds, and shares of the best peak that was seen at any time."""
        peak = max(one.peak for one in matches)
        others = [(one, timing) for one in matches for timing in one.timings if timing.name != OURS]
        return cls(
            results=[Result.of(one.task, timing, peak=peak) for one in matches for timing in one.timings],
            differences={f"{one.task.name} vs {timing.name}": timing.difference for one, timing in others},
            overheads={one.task.name: statistics.median(one.overheads) for one in matches},
            skipped=skipped,
            machine={**machine, "peak_gflops": peak / 1e9},
            memory=memory,
        )

    @property
    def remarks(self) -> list[str]:
        """See `SpeedReport.remarks`."""
        worst = max(self.differences.values(), default=0.0)
        shares = ", ".join(f"{task} {share:.1%}" for task, share in self.overheads.items())
        return [
            f"All sums of contributions were compared with ours first: the largest difference is {worst:.1e}.",
            f"What a private round takes beyond training: {shares}.",
            *([] if self.memory is None else [_memory_line(self.memory)]),
        ]

    def to_dict(self) -> dict[str, object]:
        """See `SpeedReport.to_dict`."""
        return {
            **super().to_dict(),
            "differences": dict(self.differences),
            "overheads": dict(self.overheads),
            "memory": None if self.memory is None else dict(self.memory),
        }


def _listed(machine: Mapping[str, object]) -> str:
    facts = {name: f"{value:.1f}" if name == "peak_gflops" else value for name, value in machine.items()}
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items()) + "."


def _memory_line(memory: Mapping[str, float]) -> str:
    return (
        f"Memory: {memory['megabytes']:.0f} MB at most, for a cohort of {memory['cohort']:.0f} out of "
        f"{memory['clients']:.0f} clients and {memory['weights']:.0f} weights ({memory['seconds']:.1f} s a round)."
    )
