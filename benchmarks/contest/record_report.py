"""What came out of training on records: medians and ratios, for machines and for people."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from contest.report import OURS
from contest.works import Task


@dataclass(frozen=True, kw_only=True)
class RecordResult:
    """How fast one competitor is at one task: the median over the rounds.

    `difference` says how far its clipped sum is from ours, relative to it; None if it does not clip.
    """

    name: str
    work: str
    batch: int
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
    def task(self) -> str:
        """What was done."""
        return f"{self.work} b{self.batch}"


@dataclass(frozen=True, kw_only=True)
class RecordReport:
    """Everything that was found; `skipped` says who was left out, and why."""

    results: Sequence[RecordResult]
    skipped: Mapping[str, str]
    machine: Mapping[str, object]

    @property
    def ratios(self) -> dict[str, float]:
        """Our rate divided by another's."""
        ours = {one.task: one.records_per_second for one in self.results if one.name == OURS}
        others = (one for one in self.results if one.name != OURS)
        return {f"{one.task} vs {one.name}": ours[one.task] / one.records_per_second for one in others}

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
        lines = [_HEAD, _RULE, *map(self._line, self.results), ""]
        worst = max((one.difference for one in self.results if one.difference is not None), default=0.0)
        lines.append(f"All clipped sums were compared with ours first: the largest difference is {worst:.1e}.")
        lines += [f"Left out: {name}, {reason}." for name, reason in self.skipped.items()]
        lines.append(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.machine.items()) + ".")
        return "\n".join(lines)

    def _line(self, one: RecordResult) -> str:
        ratio = self.ratios.get(f"{one.task} vs {one.name}")
        faster = "" if ratio is None else f"{ratio:.2f}"
        return (
            f"| {one.work} | {one.batch} | {one.name} | {one.records_per_second:.0f} "
            f"| {one.milliseconds_per_batch:.2f} | {faster} |"
        )


_HEAD = "| work | batch | | records/s | ms/batch | incrowd is faster by |"
_RULE = "| --- | ---: | --- | ---: | ---: | ---: |"
