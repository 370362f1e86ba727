"""Trackers, which hear how a run goes: files, TensorBoard, MLflow, Weights & Biases, and the terminal."""

import importlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from incrowd import _extensions, _files
from incrowd.errors import ConfigError
from incrowd.runs.folder import RESULT_KEYS, Record, csv_of, part, shown_settings
from incrowd.types import Facts, Tracker

_COLUMNS = [field.name for field in fields(Record) if field.name not in ("simulation", "silos")]
_ABSENT = ("round lost", "daily limit", "no answer", "refused")


def _json_line(record: Record) -> str:
    return json.dumps(record.to_json()) + "\n"


def _csv_line(record: Record) -> str:
    """A row without the columns for simulations and single silos."""
    return csv_of([getattr(record, name) for name in _COLUMNS])


@dataclass
class _Lines:
    """A file with a line for each round. A run that goes on leaves out the rounds that are done again."""

    path: Path
    line: Callable[[Record], str]
    header: str = ""

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        _files.write(self.path, self.header + "".join(map(self.line, past)))

    def round(self, record: Record) -> None:
        _files.append(self.path, self.line(record))

    def end(self, summary: Facts | None) -> None:
        pass


class _TensorBoard:
    """Curves for TensorBoard, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._make = folder, _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        _files.folder(self._folder)
        self._writer = self._make(str(self._folder), purge_step=len(past))
        self._writer.add_text("settings", json.dumps(settings, indent=1), 0)
        self._writer.flush()
        _files.close_to_others(self._folder)

    def round(self, record: Record) -> None:
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record.round)

    def end(self, summary: Facts | None) -> None:
        self._writer.close()


class _MLflow:
    """A run in MLflow, wherever its environment says that it tracks; one that goes on is a new run there."""

    def __init__(self, name: str) -> None:
        self._name, self._mlflow = name, _imported("mlflow", "mlflow")

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        self._mlflow.start_run(run_name=self._name)
        self._mlflow.log_dict(dict(settings), "settings.json")

    def round(self, record: Record) -> None:
        self._mlflow.log_metrics(_numbers(record), step=record.round)

    def end(self, summary: Facts | None) -> None:
        if summary is not None:
            self._mlflow.log_dict(dict(summary), "summary.json")
        self._mlflow.end_run("FINISHED" if summary is not None else "KILLED")


class _WandB:
    """A run in Weights & Biases, as its environment says; one that goes on is a new run there."""

    def __init__(self, name: str) -> None:
        self._name, self._wandb = name, _imported("wandb", "wandb")

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        self._run = self._wandb.init(name=self._name, config=dict(settings), save_code=False)

    def round(self, record: Record) -> None:
        self._run.log(_numbers(record), step=record.round)

    def end(self, summary: Facts | None) -> None:
        self._run.summary.update(dict(summary or {}))
        self._run.finish(exit_code=int(summary is None))


@dataclass
class _Public:
    """A wrapper of another tracker, which then hears public values alone: in a simulation each round, else at the end.

    It is for trackers that note the time of what they hear, or send it on: the duration of a round is public in
    simulations only. A run that was stopped tells them nothing until it is over.
    """

    tracker: Tracker
    live: bool
    _settings: Facts = field(default_factory=dict, init=False)
    _records: list[Record] = field(default_factory=list, init=False)

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        self._settings = {**settings, "config": shown_settings(settings["config"])}
        self._records = [replace(record, simulation=None, silos=None) for record in past]
        if self.live:
            self.tracker.start(self._settings, tuple(self._records))

    def round(self, record: Record) -> None:
        self._records.append(replace(record, simulation=None, silos=None))
        if self.live:
            self.tracker.round(self._records[-1])

    def end(self, summary: Facts | None) -> None:
        if not self.live:
            if summary is None:
                return
            self.tracker.start(self._settings, [])
            for record in self._records:
                self.tracker.round(record)
        self.tracker.end(None if summary is None else part(summary, RESULT_KEYS))


BUILT_IN: dict[str, Callable[[Path], Tracker]] = {
    "csv": lambda folder: _Lines(folder / "rounds.csv", _csv_line, ",".join(_COLUMNS) + "\n"),
    "jsonl": lambda folder: _Lines(folder / "rounds.jsonl", _json_line),
    "tensorboard": lambda folder: _TensorBoard(folder / "tensorboard"),
    "mlflow": lambda folder: _MLflow(folder.name),
    "wandb": lambda folder: _WandB(folder.name),
}
"""The trackers by the names that configuration files use, for a run in a folder."""

_TIMELESS = ("csv", "jsonl")


def trackers(names: Sequence[str], folder: Path, *, simulated: bool) -> list[Tracker]:
    """The named trackers, of ours or registered ones of other packages."""
    found: list[Tracker] = []
    for name in dict.fromkeys(names):
        make = BUILT_IN[name] if name in BUILT_IN else _extensions.found("trackers", name, field="run.trackers")
        found.append(make(folder) if name in _TIMELESS else _Public(make(folder), live=simulated))
    return found


def _imported(module: str, package: str) -> Any:
    with suppress(ImportError):
        return importlib.import_module(module)
    remedy = f"pip install 'incrowd[{package}]', or choose csv or jsonl"
    raise ConfigError(field="run.trackers", value=package, remedy=remedy)


def _numbers(record: Record) -> dict[str, float]:
    numbers = {name: getattr(record, name) for name in _COLUMNS if name not in ("round", "lost")}
    return {name: value for name, value in numbers.items() if value is not None}


class Lines:
    """A line of text for every round that is reported; speed and time left in simulations alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rounds = self._every = 1
        self._seconds: deque[float] = deque(maxlen=10)

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        self._rounds, self._every = settings["rounds"], settings["config"]["run"]["report_every"]
        self._say(f"{settings['clients']} clients, {self._rounds} rounds, noise {settings['noise_multiplier']:.4g}")
        if past:
            self._say(f"going on after round {past[-1].round + 1}")

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        done = record.round + 1
        self._seconds += [] if record.seconds is None else [record.seconds]
        if done % self._every == 0 or done == self._rounds:
            seconds = (self._rounds - done) * sum(self._seconds) / max(1, len(self._seconds))
            words = f"  {seconds:.0f} s remaining" if self._seconds else ""
            self._say(f"round {done}/{self._rounds}  {figures(record)}{words}")

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Bar:
    """A bar that moves on a terminal; speed and time left in simulations alone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: Record | None = None

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        simulated = settings["config"]["run"]["seed"] is not None
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            *((TimeRemainingColumn(), TextColumn("remaining")) if simulated else ()),
            console=self._console,
        )
        done = past[-1].round + 1 if past else 0
        self._task = self._progress.add_task("run", total=settings["rounds"], completed=done, figures="")
        self._progress.start()

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        self._last = self._last if record.loss is None else record
        shown = figures(record, measured=self._last)
        self._progress.update(self._task, completed=record.round + 1, figures=shown)

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""
        self._progress.stop()


def progress(stream: TextIO) -> Tracker:
    """The tracker for a stream: a bar where it is a terminal, lines elsewhere."""
    console = Console(file=stream)
    return Bar(console) if console.is_terminal else Lines(stream)


def say(lines: Sequence[str], stream: TextIO) -> None:
    """Print advice, a line each."""
    for line in lines:
        print(f"advice: {line}", file=stream, flush=True)


def figures(record: Record, *, measured: Record | None = None) -> str:
    """Epsilon, the last measured accuracy (or loss), the silos that had to stop, and, in a simulation, the speed."""
    measured, silos, speed = measured or record, record.silos or (), record.clients_per_second
    words = [f"epsilon {record.epsilon:.3f}"]
    if measured.accuracy is not None:
        words.append(f"accuracy {measured.accuracy:.4f}")
    elif measured.loss is not None:
        words.append(f"loss {measured.loss:.4f}")
    if stopped := [str(one["silo"]) for one in silos if one["absence"] == "budget spent"]:
        words.append(f"stopped: {', '.join(stopped)}")
    if absent := [f"{one['silo']} ({one['absence']})" for one in silos if one["absence"] in _ABSENT]:
        words.append(f"absent: {', '.join(absent)}")
    if speed is not None:
        words.append(f"{speed:.0f} clients/s" if speed >= 1 else f"{speed:.2g} clients/s")
    return "  ".join(words)
