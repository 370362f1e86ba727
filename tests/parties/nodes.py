"""Nodes without a network, for tests: a line to functions that answer, and a clock."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

Answers = Callable[[bytes], bytes]


@dataclass
class VirtualClock:
    """A clock whose time passes at once."""

    time: float = 0.0

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self.time

    def sleep(self, seconds: float, /) -> None:
        """See `Clock.sleep`."""
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
