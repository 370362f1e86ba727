"""What came out: medians, ratios of rates, shares of the peak; for machines and for people."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from contest.works import Task

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
class Result:
    """How fast one competitor is at one task; rates follow from the median over the rounds.

    Operations are counted as dense training needs them, whatever was really executed: `of_peak` may exceed 1.
    """

    name: str
    work: str
    batch: int
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


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a benchmark found.

    `differences` says how far a competitor's sum of contributions is from ours, relative to it; `overheads` what a
    round of ours takes beyond training, as a share of the training; `skipped` who was left out, and why.
    """

    results: Sequence[Result]
    differences: Mapping[str, float]
    overheads: Mapping[str, float]
    skipped: Mapping[str, str]
    machine: Mapping[str, object]
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
    def ratios(self) -> dict[str, float]:
        """Our rate divided by another's, each on one thread; and ours on several threads by that on one."""
        ratios: dict[str, float] = {}
        for ours in (one for one in self.results if one.name == OURS and one.threads == 1):
            task = f"{ours.work} b{ours.batch}"
            for other in (one for one in self.results if (one.work, one.batch) == (ours.work, ours.batch)):
                if other.name != ours.name:
                    ratios[f"{task} vs {other.name}"] = _ratio(ours, other)
                elif other.threads > 1:
                    ratios[f"{task} {other.threads} threads vs 1"] = _ratio(other, ours)
        return ratios

    def to_dict(self) -> dict[str, object]:
        """The report as JSON can hold it."""
        return {
            "results": [asdict(result) for result in self.results],
            "ratios": self.ratios,
            "differences": dict(self.differences),
            "overheads": dict(self.overheads),
            "machine": dict(self.machine),
            "skipped": dict(self.skipped),
            "memory": None if self.memory is None else dict(self.memory),
        }

    def to_text(self) -> str:
        """The report for people: a table in Markdown, and what belongs to it."""
        lines = [_HEAD, _RULE, *map(self._line, self.results), ""]
        worst = max(self.differences.values(), default=0.0)
        lines.append(f"All sums of contributions were compared with ours first: the largest difference is {worst:.1e}.")
        shares = ", ".join(f"{task} {share:.1%}" for task, share in self.overheads.items())
        lines.append(f"What a private round takes beyond training: {shares}.")
        lines += [f"Left out: {name}, {reason}." for name, reason in self.skipped.items()]
        if self.memory is not None:
            lines.append(_memory_line(self.memory))
        facts = {**self.machine, "peak_gflops": f"{self.machine['peak_gflops']:.1f}"}
        lines.append(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items()) + ".")
        return "\n".join(lines)

    def _line(self, one: Result) -> str:
        task = f"{one.work} b{one.batch}"
        ratio = self.ratios.get(f"{task} vs {one.name}")
        faster = "" if ratio is None else f"{ratio:.2f}"
        if one.threads > 1:
            faster = f"{self.ratios[f'{task} {one.threads} threads vs 1']:.2f} times 1 thread"
        return (
            f"| {one.work} | {one.batch} | {one.name} | {one.threads} | {one.client_updates_per_second:.1f} "
            f"| {one.gflops:.1f} | {one.of_peak:.0%} | {one.seconds_per_round:.3f} | {faster} |"
        )


_HEAD = "| work | batch | | threads | clients/s | GFLOP/s | of the peak | s/round | incrowd is faster by |"
_RULE = "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"


def _ratio(one: Result, other: Result) -> float:
    return one.client_updates_per_second / other.client_updates_per_second


def _memory_line(memory: Mapping[str, float]) -> str:
    return (
        f"Memory: {memory['megabytes']:.0f} MB at most, for a cohort of {memory['cohort']:.0f} out of "
        f"{memory['clients']:.0f} clients and {memory['weights']:.0f} weights ({memory['seconds']:.1f} s a round)."
    )
