"""Asking nodes: once a node, in time, whatever a network does."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from incrowd.errors import DataError
from incrowd.parties.asking import Patience, ask
from tests.parties.nodes import VirtualClock


@dataclass
class Script:
    """A line on which answers come when they are told to: (seconds, which message, what)."""

    answers: list[tuple[float, int, bytes]]
    clock: VirtualClock = field(default_factory=VirtualClock)
    pushed: list[tuple[float, int]] = field(default_factory=list)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `Line.push`."""
        first = len(self.pushed)
        self.pushed += [(self.clock.monotonic(), node) for node in nodes]
        return {str(first + place): node for place, node in enumerate(nodes)}

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Line.pull`."""
        for each in [each for each in self.answers if each[0] <= self.clock.monotonic()]:
            self.answers.remove(each)
            yield str(each[1]), each[2]


def read(node: int, answer: bytes) -> str:
    if answer == b"bad":
        raise DataError("bad")
    return f"{node} {answer.decode()}"


def asked(script: Script, *, timeout: float = 20) -> dict[int, str]:
    patience = Patience(timeout=timeout, again=5, poll=0.1, clock=script.clock)
    return ask(script, range(2), b"?", longest=100, read=read, patience=patience)


def test_the_silent_are_asked_again_and_nobody_else() -> None:
    script = Script([(1.0, 0, b"a"), (7.0, 2, b"late but good")])
    assert asked(script) == {0: "0 a", 1: "1 late but good"}
    assert [(round(time), node) for time, node in script.pushed] == [(0, 0), (0, 1), (5, 1)]


def test_who_stays_silent_is_asked_less_and_less_often() -> None:
    script = Script([(1.0, 0, b"a"), (90.0, 1, b"b")])
    asked(script, timeout=100)
    times = [time for time, node in script.pushed if node == 1]
    assert times == pytest.approx([0, 5, 10, 20, 40, 80], abs=2.5)  # it looks ten times a second


def test_the_first_answer_of_a_node_counts() -> None:
    script = Script([(1.0, 0, b"first"), (1.0, 0, b"second"), (2.0, 0, b"third"), (3.0, 1, b"b")])
    assert asked(script) == {0: "0 first", 1: "1 b"}


def test_a_round_goes_on_without_the_dead() -> None:
    script = Script([(1.0, 0, b"a"), (21.0, 1, b"too late")])
    assert asked(script) == {0: "0 a"}
    assert script.clock.monotonic() == pytest.approx(20, abs=0.2)
    assert script.answers == [(21.0, 1, b"too late")]
