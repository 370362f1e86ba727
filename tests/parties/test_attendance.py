"""Whoever stays away is not waited for again and again, and takes part again as soon as it is back."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from incrowd.parties.asking import Attendance, Patience, ask
from tests.parties.nodes import VirtualClock

TIMEOUT, TOOK, NEVER = 600.0, 2.0, float("inf")


@dataclass
class Days:
    """A line to nodes each of which takes so many seconds for its answer in each round.

    A question waits for a node that is away: it is answered in the round in which the node is back.
    """

    seconds: Callable[[int, int], float]
    clock: VirtualClock = field(default_factory=VirtualClock)
    round: int = -1
    on_the_way: list[tuple[float, str]] = field(default_factory=list)
    known: set[tuple[int, int]] = field(default_factory=set)
    waiting: list[tuple[int, str]] = field(default_factory=list)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `Line.push`. A question that is asked again is on its way already."""
        owners = {f"{self.round} {node}": node for node in nodes}
        for number, node in owners.items():
            if (self.round, node) not in self.known:
                self.known.add((self.round, node))
                self.waiting.append((node, number))
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Line.pull`."""
        for node, number in list(self.waiting):
            if (seconds := self.seconds(node, self.round)) < NEVER:
                self.waiting.remove((node, number))
                self.on_the_way.append((self.clock.monotonic() + seconds, number))
        come = [each for each in self.on_the_way if each[0] <= self.clock.monotonic() and each[1] in asked]
        for each in come:
            self.on_the_way.remove(each)
            yield each[1], each[1].encode()


def lasted(
    seconds: Callable[[int, int], float], *, rounds: int, nodes: int = 3, liars: Collection[int] = ()
) -> list[tuple[float, set[int]]]:
    """How long each round lasted, and who answered in it."""
    line, attendance, found = Days(seconds), Attendance(), []
    patience = Patience(timeout=TIMEOUT, again=5, poll=0.25, clock=line.clock)
    for line.round in range(rounds):
        begin = line.clock.monotonic()

        def read(node: int, answer: bytes) -> bytes | None:
            assert answer == f"{line.round} {node}".encode()  # no other round's
            return None if node in liars else answer

        answered = ask(line, range(nodes), b"?", longest=9, read=read, patience=patience, attendance=attendance)
        found.append((line.clock.monotonic() - begin, set(answered)))
    return found


def away(first: int, last: int) -> Callable[[int, int], float]:
    return lambda node, number: NEVER if node == 2 and first <= number < last else TOOK


def test_who_comes_back_and_is_slower_than_the_others_takes_part_after_its_first_answer() -> None:
    def seconds(node: int, number: int) -> float:
        return TOOK if node != 2 else NEVER if 10 <= number < 50 else 3.0

    found = lasted(seconds, rounds=100)  # its first answer comes in round 51
    assert [number for number, (_, answered) in enumerate(found) if 2 not in answered] == [
        *range(10, 52)
    ]  # its first one comes in round 51
    assert all(seconds < 5.5 for number, (seconds, _) in enumerate(found) if number not in (10, 11))


def test_without_memory_every_round_lasts_as_long_as_patience_does() -> None:
    """The control."""
    line = Days(away(0, 10))
    patience = Patience(timeout=TIMEOUT, again=5, poll=1.0, clock=line.clock)
    for line.round in range(5):
        ask(line, range(3), b"?", longest=9, read=lambda *_: None, patience=patience)
    assert line.clock.monotonic() == pytest.approx(5 * TIMEOUT, abs=10)


@pytest.mark.parametrize("kind", ["every other round", "two of three", "late", "at random"])
def test_who_comes_and_goes_to_hold_the_others_up_costs_one_round_in_ten_at_most(kind: str) -> None:
    generator = np.random.default_rng(1)
    ways: dict[str, Callable[[int], float]] = {
        "every other round": lambda number: TOOK if number % 2 else NEVER,
        "two of three": lambda number: TOOK if number % 3 else NEVER,
        "late": lambda _: TIMEOUT + 1,
        "at random": lambda _: float(generator.choice([0.1, 1.0, 5.0, 700.0, NEVER])),
    }
    rounds = 1000
    found = lasted(lambda node, number: ways[kind](number) if node == 2 else TOOK, rounds=rounds)
    assert sum(seconds > 10 for seconds, _ in found) <= 2 + rounds / 10
    assert all({0, 1} <= answered for _, answered in found)


def test_where_everybody_is_away_all_are_waited_for() -> None:
    found = lasted(lambda _, number: NEVER if number < 5 else TOOK, rounds=10)
    assert [seconds > 500 for seconds, _ in found] == [True] * 5 + [False] * 5
    assert [answered for _, answered in found[5:]] == [{0, 1, 2}] * 5


@pytest.mark.parametrize("liars", [(), (0,)])
def test_a_liar_that_is_always_there_ends_no_round_before_the_others_answer(liars: tuple[int, ...]) -> None:
    """The others were away twice, and are slow after a restart of the proxy."""

    def seconds(node: int, number: int) -> float:
        return 0.5 if node == 0 else NEVER if number in (1, 2) else 30.0 if number == 5 else TOOK

    found = lasted(seconds, rounds=6, liars=liars)
    assert found[5][1] == ({0, 1, 2} if liars else {0})  # without a liar the round has an answer, and goes on
