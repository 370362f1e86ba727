"""How far a run is, on standard error: a bar on a terminal, plain lines elsewhere.

How fast it is, and how long it will take, is shown in simulations alone.
"""

from collections import deque
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from incrowd.runs.database import Record
from incrowd.runs.trackers import Facts, Tracker

_RECENT = 10
_ABSENT = ("round lost", "daily limit", "no answer", "refused")


class Lines:
    """A line for every round that is reported."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rounds = self._every = 1
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""
        self._rounds, self._every = settings["rounds"], settings["config"]["run"]["report_every"]
        self._say(f"{settings['clients']} clients, {self._rounds} rounds, noise {settings['noise_multiplier']:.4g}")
        if past:
            self._say(f"going on after round {past[-1].round + 1}")

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        done = record.round + 1
        if record.seconds is not None:
            self._seconds.append(record.seconds)
        if done % self._every == 0 or done == self._rounds:
            seconds = (self._rounds - done) * sum(self._seconds) / max(1, len(self._seconds))
            words = f"  {seconds:.0f} s remaining" if self._seconds else ""
            self._say(f"round {done}/{self._rounds}  {figures(record)}{words}")

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Bar:
    """A bar that moves."""

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
        if record.loss is not None:
            self._last = record
        shown = figures(record, measured=self._last)
        self._progress.update(self._task, completed=record.round + 1, figures=shown)

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""
        self._progress.stop()


def progress(stream: TextIO) -> Tracker:
    """The tracker for a stream: a bar where it is a terminal."""
    console = Console(file=stream)
    return Bar(console) if console.is_terminal else Lines(stream)


def say(lines: Sequence[str], stream: TextIO) -> None:
    """Tell what is doubtful, a line each."""
    for line in lines:
        print(f"advice: {line}", file=stream, flush=True)


def figures(record: Record, *, measured: Record | None = None) -> str:
    """Epsilon, the last measured accuracy (or loss), the silos that had to stop, and, in a simulation, the speed."""
    measured = measured or record
    words = [f"epsilon {record.epsilon:.3f}"]
    if measured.accuracy is not None:
        words.append(f"accuracy {measured.accuracy:.4f}")
    elif measured.loss is not None:
        words.append(f"loss {measured.loss:.4f}")
    stopped = [str(standing["silo"]) for standing in record.silos or () if standing["absence"] == "budget spent"]
    if stopped:
        words.append(f"stopped: {', '.join(stopped)}")
    absent = [f"{s['silo']} ({s['absence']})" for s in record.silos or () if s["absence"] in _ABSENT]
    if absent:
        words.append(f"absent: {', '.join(absent)}")
    speed = record.clients_per_second
    if speed is not None:
        words.append(f"{speed:.0f} clients/s" if speed >= 1 else f"{speed:.2g} clients/s")
    return "  ".join(words)
