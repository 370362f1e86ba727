"""What a server has asked parties and waits for, through all lives of both.

A message that was sent to a life of a party, or of the SuperLink, that is over will never be answered. So the numbers
that the asking side knows are of questions, and a question is sent again, as another message, where its party has
another life.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass
class _Open:
    party: str
    content: bytes
    end: float
    message: str = ""
    life: str = ""
    latest: bool = True


class Questions:
    """Open questions. Of a party, the latest is the one that is sent to a new life; an answer to any counts.

    Guarantee: a question is sent as it was asked or not at all: one that was followed by another has no content any
    more, and is not sent again when the other is answered.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[str, _Open] = {}

    def add(self, party: str, content: bytes, end: float) -> str:
        """Open a question, until some moment; its number."""
        number = f"question {next(self._numbers)}"
        for each in self._open.values():
            if each.party == party:  # a party that is away for long is not to fill the memory
                each.content, each.latest = b"", False
        self._open[number] = _Open(party, content, end)
        return number

    def close(self, number: str) -> None:
        """It is answered, or nobody waits for it any more."""
        self._open.pop(number, None)

    def forget(self, now: float) -> None:
        """Close those whose time is over."""
        for number in [number for number, each in self._open.items() if each.end <= now]:
            del self._open[number]

    def start_anew(self) -> None:
        """The SuperLink has another life: every message that was sent to it is gone."""
        for each in self._open.values():
            each.message, each.life = "", ""

    def due(self, lives: Mapping[str, str]) -> dict[str, str]:
        """The questions to be sent now, and the party of each: the latest of a party whose life has not heard it."""
        return {
            number: each.party
            for number, each in self._open.items()
            if each.latest and each.party in lives and each.life != lives[each.party]
        }

    def content(self, number: str) -> bytes:
        """What is asked. Edge cases: nothing, where the party was asked something else since."""
        return self._open[number].content

    def left(self, number: str, now: float) -> float:
        """The seconds until nobody waits for an answer."""
        return max(0.0, self._open[number].end - now)

    def sent(self, number: str, message: str, life: str) -> None:
        """It was sent by a message to a life of its party; an empty one says that it did not go."""
        question = self._open[number]
        question.message, question.life = message, life if message else ""

    def waiting(self, numbers: Sequence[str]) -> dict[str, str]:
        """The messages that may be answered, and the question that each asks, of these questions."""
        found = ((self._open[number].message, number) for number in numbers if number in self._open)
        return {message: number for message, number in found if message}

    def lost(self, number: str) -> None:
        """No answer will come to its message: it waits for another life, or to be asked anew."""
        self._open[number].message = ""
