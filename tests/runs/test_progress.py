from dataclasses import replace
from io import StringIO

from rich.console import Console

from incrowd.runs.database import Record
from incrowd.runs.trackers import Bar, Lines

SETTINGS = {"rounds": 6, "clients": 12, "noise_multiplier": 2.0, "config": {"run": {"report_every": 2, "seed": 1}}}


def record(number: int, *, accuracy: float | None = None, loss: float | None = None) -> Record:
    return Record(round=number, epsilon=0.5 * number, seconds=2.0, clients_per_second=6.0, accuracy=accuracy, loss=loss)


def test_a_terminal_gets_a_bar_that_remembers_the_last_accuracy() -> None:
    stream = StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=120))
    bar.start(SETTINGS, [])
    bar.round(record(0, accuracy=0.75, loss=1.0))
    bar.round(record(1))
    bar.end({})
    last = stream.getvalue().splitlines()[-1]
    for shown in ("2/6", "epsilon 0.500", "accuracy 0.7500", "6 clients/s", "remaining"):
        assert shown in stream.getvalue()
        assert shown in last or "\x1b" in last


def test_a_run_in_earnest_says_nothing_of_its_speed() -> None:
    settings = {**SETTINGS, "config": {"run": {"report_every": 1, "seed": None}}}
    timeless = replace(record(5, accuracy=0.75, loss=1.0), seconds=None, clients_per_second=None)
    plain, terminal = StringIO(), StringIO()
    for tracker in (Lines(plain), Bar(Console(file=terminal, force_terminal=True, width=120))):
        tracker.start(settings, [])
        tracker.round(timeless)
        tracker.end({})
    assert plain.getvalue().splitlines()[1:] == ["round 6/6  epsilon 2.500  accuracy 0.7500"]
    assert "6/6" in terminal.getvalue()
    assert "remaining" not in terminal.getvalue()
    assert "clients/s" not in terminal.getvalue()
