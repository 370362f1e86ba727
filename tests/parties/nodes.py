"""Nodes without a network, for tests: a line to functions that answer, which can do all that a network does to it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

Answers = Callable[[bytes], bytes]


@dataclass
class VirtualClock:
    """A clock whose time passes at once."""

    time: float = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        return self.time

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        self.time += seconds


@dataclass
class PlainLine:
    """Every node answers at once."""

    nodes: Mapping[int, Answers]
    waiting: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[int, bytes]] = field(default_factory=list)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `Line.push`."""
        owners = {}
        for node in nodes:
            number = f"message {len(self.asked)}"
            self.asked.append((node, content))
            self.waiting[number] = self.nodes[node](content)
            owners[number] = node
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Line.pull`."""
        for number in asked:
            if number in self.waiting:
                yield number, self.waiting.pop(number)


@dataclass
class WildLine:
    """A network at its worst: it drops, delays, repeats, mixes up and replays messages and answers, and parties die.

    `die` is called with a node's number where its party is killed: before it has answered, or after. Those who are
    `away` hear nothing.
    """

    nodes: Mapping[int, Answers]
    clock: VirtualClock
    generator: np.random.Generator
    die: Callable[[int], None] = lambda _: None
    count: int = 0
    on_the_way: list[tuple[float, str, bytes]] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    happened: dict[str, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `Line.push`."""
        owners = {}
        for node in nodes:
            self.count += 1
            number = f"message {self.count}"
            owners[number] = node
            if node in self.away or self.happens("dropped", 0.1):
                continue
            for _ in range(2 if self.happens("asked twice", 0.1) else 1):
                self._answer(node, number, content)
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Line.pull`."""
        ready = [each for each in self.on_the_way if each[0] <= self.clock.now()]
        self.generator.shuffle(ready)
        for each in ready:
            self.on_the_way.remove(each)
            if self.happens("pulled by others", 0.02):
                continue
            yield each[1], each[2]  # of earlier rounds, too

    def _answer(self, node: int, number: str, content: bytes) -> None:
        if self.happens("killed before", 0.02):
            self.die(node)
            return
        answer = self.nodes[node](content)
        if self.happens("killed after", 0.02):
            self.die(node)
            return
        self.heard = [*self.heard[-20:], answer]
        self._send(number, answer)
        if self.happens("sent twice", 0.1):
            self._send(number, answer)
        if self.happens("replayed", 0.1):
            self._send(number, self.heard[self.generator.integers(len(self.heard))])
        if self.happens("mixed up", 0.05):
            self._send(f"message {self.generator.integers(1, self.count + 1)}", answer)

    def _send(self, number: str, answer: bytes) -> None:
        delay = float(self.generator.exponential(0.2)) if not self.happens("late", 0.03) else 1e3
        if self.happens("broken", 0.03):
            place = int(self.generator.integers(len(answer)))
            answer = answer[:place] + bytes([answer[place] ^ 1]) + answer[place + 1 :]
        if not self.happens("lost", 0.05):
            self.on_the_way.append((self.clock.now() + delay, number, answer))

    def happens(self, what: str, probability: float) -> bool:
        """Whether it does, this time."""
        found = bool(self.generator.random() < probability)
        self.happened[what] = self.happened.get(what, 0) + found
        return found
