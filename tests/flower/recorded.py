"""`incrowd`, whose server notes each reply of a party to a list, as it came, in the file that REPLIES names."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from incrowd.cli import main
from incrowd.parties import served
from incrowd.parties.asking import Transport, ask

REPLIES = "INCROWD_TESTS_REPLIES"


class Tap:
    """A transport that is listened to."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        return self._transport.push(nodes, content, seconds)

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        for message, reply in self._transport.pull(asked, longest):
            with Path(os.environ[REPLIES]).open("ab") as replies:
                replies.write(len(reply).to_bytes(4) + reply)
            yield message, reply


def replies_in(path: Path) -> list[bytes]:
    """All replies, in the order in which they came."""
    content, found, at = path.read_bytes(), list[bytes](), 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4])
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


if __name__ == "__main__":

    def tapped(transport: Transport, *given: Any, **named: Any) -> Any:
        return ask(Tap(transport), *given, **named)

    setattr(served, "ask", tapped)  # noqa: B010 - the module does not export it
    main()
