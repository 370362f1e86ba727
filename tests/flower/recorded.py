"""`incrowd`, whose server notes each reply of a party, as it came, in the file that REPLIES names."""

import os
from collections.abc import Iterator
from pathlib import Path

from incrowd.cli import main
from incrowd.flower.superlink import SuperLink

REPLIES = "INCROWD_TESTS_REPLIES"


def replies_in(path: Path) -> list[bytes]:
    """All replies, in the order in which they came."""
    content, found, at = path.read_bytes(), list[bytes](), 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4])
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


if __name__ == "__main__":
    pull = SuperLink.pull

    def noted(self: SuperLink, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        for message, reply in pull(self, asked, longest):
            with Path(os.environ[REPLIES]).open("ab") as replies:
                replies.write(len(reply).to_bytes(4) + reply)
            yield message, reply

    SuperLink.pull = noted  # type: ignore[method-assign]  # to listen
    main()
