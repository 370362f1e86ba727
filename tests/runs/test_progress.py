from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from incrowd.runs.database import Record
from incrowd.runs.progress import Bar, Lines, figures, progress

SETTINGS = {"rounds": 6, "clients": 12, "noise_multiplier": 2.0, "config": {"run": {"report_every": 2, "seed": 1}}}


def record(number: int, *, accuracy: float | None = None, loss: float | None = None) -> Record:
    return Record(round=number, epsilon=0.5 * number, seconds=2.0, clients_per_second=6.0, accuracy=accuracy, loss=loss)


def test_lines_come_for_the_rounds_that_are_reported() -> None:
    stream = StringIO()
    lines = Lines(stream)
    lines.start(SETTINGS, [record(0)])
    for number in range(1, 6):
        lines.round(record(number, accuracy=0.75, loss=1.0))
    lines.end(None)
    assert stream.getvalue().splitlines() == [
        "12 clients, 6 rounds, noise 2",
        "going on after round 1",
        "round 2/6  epsilon 0.500  accuracy 0.7500  6 clients/s  8 s remaining",
        "round 4/6  epsilon 1.500  accuracy 0.7500  6 clients/s  4 s remaining",
        "round 6/6  epsilon 2.500  accuracy 0.7500  6 clients/s  0 s remaining",
    ]


def test_the_last_round_is_always_reported_and_a_loss_stands_for_an_accuracy() -> None:
    stream = StringIO()
    lines = Lines(stream)
    lines.start(SETTINGS | {"rounds": 1}, [])
    lines.round(record(0, loss=0.5))
    assert "round 1/1  epsilon 0.000  loss 0.5000" in stream.getvalue()


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


@pytest.mark.parametrize(("terminal", "kind"), [("1", Bar), ("", Lines)])
def test_the_stream_decides(monkeypatch: pytest.MonkeyPatch, terminal: str, kind: type[object]) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", terminal)
    assert isinstance(progress(StringIO()), kind)


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


def test_slow_clients_are_not_rounded_to_none() -> None:
    assert figures(replace(record(1), clients_per_second=0.0714)).endswith("0.071 clients/s")
