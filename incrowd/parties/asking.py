"""Asks nodes at once over any transport, and takes the first readable answer of each.

The server asks silent nodes again, because a message to a killed node is lost without an error.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from incrowd import _validate
from incrowd.errors import DataError, RoundUnanswered

T = TypeVar("T")

UNANSWERED = 3
"""Silent rounds in a row that end a run which draws cohorts; a run that asks every party ends at the first."""

_EARNED = 10  # rounds with an answer in time that make up for one without


class Attendance:
    """The answers of the last rounds, by node.

    The server waits up to its patience for a node, until the node has missed two rounds. The node is then away: one
    question waits for it, and rounds go on. Anything that it sends brings it back, with as long as the others took (and
    at least until silent nodes are asked again), until it misses another. Ten answers in time make up for one.

    Guarantee: all absent nodes together cost the full time in two rounds, and a node that comes and
    goes in one of ten at most. Late answers are dropped. While its patience lasts, the server asks a silent node once.

    Edge cases: if all nodes are away, the server waits for all. A restarted server takes every node as present.
    """

    def __init__(self) -> None:
        self._missed: Counter[int] = Counter()  # a missed round counts ten, and an answer in time takes one back
        self._heard: set[int] = set()
        self._late: dict[str, int] = {}
        self._asked: dict[int, float] = {}
        self._regular: set[int] = set()
        self._complete: float | None = None
        self._unanswered = 0

    @property
    def late(self) -> Collection[str]:
        """The messages of rounds before that were not answered in time, and may be yet."""
        return self._late.keys()

    def begin(self, nodes: Collection[int], *, now: float, timeout: float) -> set[int]:
        """Begin a round; return the nodes that it asks."""
        self._complete = None
        self._regular = {node for node in nodes if self._missed[node] <= _EARNED} or set(nodes)
        waiting = {node for node in self._late.values() if now - self._asked[node] < timeout}
        asked = set(nodes) - (waiting - self._regular - self._heard)
        self._asked |= dict.fromkeys(asked, now)
        return asked

    def enough(self, silent: Collection[int], *, elapsed: float, least: float) -> bool:
        """Whether a round goes on without those who are silent after so many seconds."""
        if not self._regular.isdisjoint(silent):
            return False
        if self._complete is None:
            self._complete = elapsed
        grace = 0.0 if self._heard.isdisjoint(silent) else max(least, self._complete)
        return elapsed >= self._complete + grace

    def hear(self, message: str) -> None:
        """Something came in answer to a message, which may be of a round before."""
        if message in self._late:
            self._heard.add(self._late[message])

    def check_answered(self, number: int, *, answers: int, refusals: int, everyone: bool) -> None:
        """Count the contributions to a round whose cohort was not empty.

        Guarantee: silent rounds end the run (`RoundUnanswered`): the first that some refuse or that asked `everyone`,
        otherwise the third in a row. The error names no cohort.
        """
        self._unanswered = 0 if answers else self._unanswered + 1
        if self._unanswered >= (1 if everyone or refusals else UNANSWERED):
            how = "everybody who was asked and said something refused it" if refusals else "nobody answered"
            raise RoundUnanswered(
                f"round {number + 1}: {how}, so the run ends here, for noise alone is not released: see to the parties "
                "and their reasons, and give the same command again; a server that was put back from a copy begins a "
                "new run"
            )

    def end(self, messages: Mapping[str, int], found: Collection[int]) -> None:
        """End the round, and note the nodes that answered these messages in time."""
        asked = set(messages.values())
        for node in asked:
            if node in found:
                self._heard.add(node)
                self._missed[node] = max(0, self._missed[node] - 1)
            else:
                self._heard.discard(node)
                self._missed[node] = min(2 * _EARNED, self._missed[node] + _EARNED)
        still = {message: node for message, node in self._late.items() if node not in asked}
        self._late = still | {message: node for message, node in messages.items() if node not in found}


class Clock(Protocol):
    """Tells and passes time, as the module `time` does."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Let so many seconds pass."""


class Transport(Protocol):
    """The way to nodes and back, for opaque bytes: in memory, a folder that both sides see, Flower."""

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Put one question to several nodes, who have so many seconds: the number of each message, and its node."""

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """The answers that have come, of at most so many bytes, each with the number of the message it answers."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the server waits for answers, in seconds.

    It looks every `poll`, and asks silent nodes again after `again`, then after twice as long, and so on, because each
    message costs the SuperLink memory. After `timeout` the round goes on without them; `Attendance` says how often.
    """

    timeout: float = 600.0
    again: float = 5.0
    poll: float = 0.1
    clock: Clock = time

    def __post_init__(self) -> None:
        _validate.positive(timeout=self.timeout, again=self.again, poll=self.poll)


def ask(
    transport: Transport,
    nodes: Collection[int],
    frame: bytes,
    *,
    longest: int,
    read: Callable[[int, bytes], T],
    patience: Patience,
    attendance: Attendance | None = None,
) -> dict[int, T]:
    """The first answer of each node to a frame, as `read` understands it.

    Guarantee: a node counts once, however often it sends; answers that are late, or that `read` refuses (`DataError`),
    do not count. Until one is there that is not None, the server waits for all.
    """
    clock, found, owners = patience.clock, dict[int, T](), dict[str, int]()
    begin, again, attendance = clock.monotonic(), 0.0, attendance or Attendance()
    asked = attendance.begin(nodes, now=begin, timeout=patience.timeout)
    while True:
        silent = [node for node in nodes if node in asked and node not in found]
        elapsed = clock.monotonic() - begin
        if not silent or elapsed >= patience.timeout:
            break
        counted = any(answer is not None for answer in found.values())  # who refuses, or lies, hurries nobody
        if counted and attendance.enough(silent, elapsed=elapsed, least=patience.again):
            break
        if elapsed >= again:
            owners |= transport.push(silent, frame, patience.timeout - elapsed)
            again = elapsed + max(patience.again, elapsed)
        wanted = [number for number, node in owners.items() if node in silent]
        for number, answer in transport.pull([*wanted, *attendance.late], longest):
            node = owners.get(number)
            attendance.hear(number)
            if node is not None and node not in found:
                with suppress(DataError):
                    found[node] = read(node, answer)
        if len(found) < len(asked):
            clock.sleep(patience.poll)
    attendance.end(owners, found)
    return found
