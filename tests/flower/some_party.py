"""A party for tests, as a process of its own: FOLDER ADDRESS AUTHORITY. Its answer is made of its key and the question.

A question that starts with b"die" kills it, once.
"""

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

from incrowd._log import log_to_stderr
from incrowd.flower.fleet import PartyLine
from incrowd.flower.node import attend
from incrowd.flower.superlink import end_with


def answer(name: str, question: bytes) -> bytes:
    """What the party of this name answers."""
    seed = hashlib.sha256(name.encode() + question).digest()
    return (seed * (len(question) // len(seed) + 1))[: max(len(question), 32)]


def main(folder: Path, address: str, authority: Path) -> None:
    name = folder.name

    def handle(question: bytes) -> bytes:
        if question.startswith(b"die") and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if question.startswith(b"fail"):
            raise ValueError("a record says sesame")
        return answer(name, question)

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    attend(PartyLine(address, authority.read_text(), folder), handle, stop)


if __name__ == "__main__":
    log_to_stderr(as_json=False)
    end_with(os.getppid())
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
