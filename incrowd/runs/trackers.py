"""Who is told how a run goes: one small interface, and trackers for files, TensorBoard and MLflow."""

import csv
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from incrowd import _files
from incrowd.errors import ConfigError
from incrowd.runs.database import Record

Facts = Mapping[str, Any]


class Tracker(Protocol):
    """Something that wants to know how a run goes."""

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """The run begins, or goes on after these rounds."""
        ...

    def round(self, record: Record) -> None:
        """A round has ended."""
        ...

    def end(self, summary: Facts | None) -> None:
        """The run is over, or, without a summary, was stopped before its end."""
        ...


@dataclass
class JsonLines:
    """A JSON object a line, one for each round. A run that goes on leaves out the rounds that are done again."""

    path: Path

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        _files.write(self.path, "".join(map(self._line, past)))

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        _files.append(self.path, self._line(record))

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""

    @staticmethod
    def _line(record: Record) -> str:
        return json.dumps(record.to_json()) + "\n"


@dataclass
class Csv:
    """A table with a row for each round; what only a simulation may look at, and single silos, are left out."""

    path: Path

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        _files.write(self.path, ",".join(_COLUMNS) + "\n" + "".join(map(self._line, past)))

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        _files.append(self.path, self._line(record))

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""

    @staticmethod
    def _line(record: Record) -> str:
        line = StringIO()
        csv.writer(line, lineterminator="\n").writerow([getattr(record, name) for name in _COLUMNS])
        return line.getvalue()


@dataclass
class TensorBoard:
    """Curves for TensorBoard, in a folder."""

    folder: Path
    _writer: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._make = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        _files.folder(self.folder)
        self._writer = self._make(str(self.folder), purge_step=len(past))
        self._writer.add_text("settings", json.dumps(settings, indent=1), 0)
        self._writer.flush()
        _files.close_to_others(self.folder)

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record.round)

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""
        self._writer.close()


@dataclass
class AtTheEnd:
    """Tells another tracker all of a run at once, when the run is over.

    For trackers that note when they were told, or tell someone who may be looking on: how long a round took is no
    business of theirs unless the run is a simulation. A run that was stopped tells them nothing until it is over.
    """

    tracker: Tracker
    _settings: Facts = field(default_factory=dict, init=False)
    _records: list[Record] = field(default_factory=list, init=False)

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        self._settings, self._records = settings, list(past)

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        self._records.append(record)

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""
        if summary is None:
            return
        self.tracker.start(self._settings, [])
        for record in self._records:
            self.tracker.round(record)
        self.tracker.end(summary)


@dataclass
class MLflow:
    """A run in MLflow, wherever its environment says that it tracks; one that goes on is a new run there."""

    name: str
    _mlflow: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._mlflow = _imported("mlflow", "mlflow")

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        self._mlflow.start_run(run_name=self.name)
        self._mlflow.log_dict(dict(settings), "settings.json")

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        self._mlflow.log_metrics(_numbers(record), step=record.round)

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""
        if summary is not None:
            self._mlflow.log_dict(dict(summary), "summary.json")
        self._mlflow.end_run("FINISHED" if summary is not None else "KILLED")


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "csv": lambda folder: Csv(folder / "rounds.csv"),
    "jsonl": lambda folder: JsonLines(folder / "rounds.jsonl"),
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "mlflow": lambda folder: MLflow(folder.name),
}
"""The trackers by the names that configuration files use, for a run in a folder."""


_WITH_A_CLOCK = ("tensorboard", "mlflow")


def trackers(names: Sequence[str], folder: Path, *, simulated: bool) -> list[Tracker]:
    """The named trackers; those that know what time it is hear of a run that is no simulation when it is over.

    Edge cases: one whose package is not installed is a `ConfigError`.
    """
    made = {name: TRACKERS[name](folder) for name in names}
    return [AtTheEnd(tracker) if name in _WITH_A_CLOCK and not simulated else tracker for name, tracker in made.items()]


def _imported(module: str, package: str) -> Any:
    with suppress(ImportError):
        return importlib.import_module(module)
    raise ConfigError(field="run.trackers", value=package, remedy=f"pip install {package}, or choose csv or jsonl")


def _numbers(record: Record) -> dict[str, float]:
    numbers = {name: getattr(record, name) for name in _COLUMNS if name not in ("round", "lost")}
    return {name: value for name, value in numbers.items() if value is not None}


_COLUMNS = [field.name for field in fields(Record) if field.name not in ("simulation", "silos")]
