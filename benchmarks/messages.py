"""What a server and real parties take for a message: processor time, seconds a round, memory; on loopback, with TLS.

    python benchmarks/messages.py
    python benchmarks/messages.py --weights 1000,100000,1000000 --parties 3,10,50 --poll 1.0 --rounds 3 --json

A message is a signed question with so many float32 weights and the signed, packed answer to it. Parties do not train:
they check the question, and sign and keep an answer of numbers as clipped contributions have them. They wait in threads
of at most four processes, and look for a question every `--poll` seconds, which costs the server something, too: it is
measured while nobody is asked, and taken off.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from harness import processes
from harness.results import markdown
from incrowd import IncrowdError
from incrowd.flower.fleet import PartyLine
from incrowd.flower.node import attend
from incrowd.flower.superlink import SuperLink
from incrowd.parties.asking import Patience, ask
from incrowd.parties.frames import Expected, PartyAnswer, Place, Request, decoded, longest_answer, read_answer
from incrowd.parties.keys import AUTHORITY, Enrolment, answer_key, new_authority, new_party, new_server_certificate

PROCESSES, IDLE, MOST = 4, 5.0, 10**8
PARTS = ("superlink", "server", "party")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found for so many parties and weights; processor seconds and memory by the part that takes them."""

    weights: int
    parties: int
    seconds_a_round: float
    processor_a_message: dict[str, float]
    processor_a_look: dict[str, float]
    most_memory: dict[str, float]

    def row(self) -> dict[str, object]:
        """For people."""
        message = {part: f"{1e3 * self.processor_a_message[part]:.1f}" for part in PARTS}
        look = self.processor_a_look["superlink"]
        memory = {f"{part} MB": f"{self.most_memory[part] / 1e6:.0f}" for part in PARTS}
        head = {"weights": self.weights, "parties": self.parties, "s/round": f"{self.seconds_a_round:.2f}"}
        return (
            head
            | {f"{part} ms": value for part, value in message.items()}
            | {"a look ms": f"{1e3 * look:.2f}"}
            | memory
        )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="1000,100000,1000000", help="how many numbers a message has")
    parser.add_argument("--parties", default="3,10", help="how many are asked at once")
    parser.add_argument("--poll", type=float, default=1.0, help="seconds between two looks of a party")
    parser.add_argument("--rounds", type=int, default=3, help="how often all are asked")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    options = parser.parse_args()
    results = []
    for parties in map(int, options.parties.split(",")):
        results += measure(
            [int(float(size)) for size in options.weights.split(",")], parties, poll=options.poll, rounds=options.rounds
        )
    if options.json:
        print(json.dumps({"results": [asdict(found) for found in results]}))
    else:
        print("\n".join(markdown([found.row() for found in results])))


def measure(sizes: Sequence[int], parties: int, *, poll: float, rounds: int) -> list[Found]:
    """All sizes of messages, with one server and these parties."""
    with tempfile.TemporaryDirectory(prefix="incrowd-bench-") as folder:
        place = Path(folder)
        new_authority(place / "server")
        new_server_certificate(place / "server", ["127.0.0.1"])
        enrolled = [new_party(place / name, name) for name in (f"party-{number:04}" for number in range(parties))]
        port = _free_port()
        key = Ed25519PrivateKey.generate()
        with (
            SuperLink(place / "serving", enrolled, keys=place / "server", port=port) as link,
            _attending(place, [each.name for each in enrolled], port, poll, key) as waiting,
        ):
            while len(link.present()) < parties:
                time.sleep(0.5)
            server = Server(link=link, parties=enrolled, key=key, waiting=waiting)
            return [server.found(size, poll=poll, rounds=rounds) for size in sizes]


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """A server whose parties are there, in the processes with the numbers `waiting`."""

    link: SuperLink
    parties: Sequence[Enrolment]
    key: Ed25519PrivateKey
    waiting: Sequence[int]

    def found(self, size: int, *, poll: float, rounds: int) -> Found:
        """What messages of this size take."""
        count = len(self.parties)
        begin, before = time.monotonic(), self.used()
        time.sleep(IDLE)
        looks = count * (time.monotonic() - begin) / poll
        look = {part: (value - before[part]) / looks for part, value in self.used().items()}
        self.round(size, 0)
        begin, before = time.monotonic(), self.used()
        seconds = [self.round(size, number) for number in range(1, rounds + 1)]
        looks = count * (time.monotonic() - begin) / poll
        used = self.used()
        message = {part: (used[part] - before[part] - looks * look[part]) / (count * rounds) for part in PARTS}
        return Found(
            weights=size,
            parties=count,
            seconds_a_round=statistics.median(seconds),
            processor_a_message={part: max(0.0, value) for part, value in message.items()},
            processor_a_look=look,
            most_memory={part: sum(processes.memory(one)["most"] for one in its) for part, its in self.numbers.items()},
        )

    def round(self, size: int, number: int) -> float:
        """Ask all, and read what they answer; the seconds from the question to the last answer."""
        asked, place = np.random.default_rng(number).normal(size=size).astype(np.float32), _place(size, number, "")
        begin = time.monotonic()
        question = Request(place=place, weights=asked, clip={}).to_bytes(self.key)
        by_number = {number: each for each in self.parties for number in [self.link.nodes[each.name]]}

        def read(node: int, frame: bytes) -> int:
            expected = _expected(_place(size, number, by_number[node].name), size)
            signed = read_answer(frame, expected=expected, key=by_number[node].verifier())
            return decoded(*signed, expected=expected).unclipped

        patience = Patience(timeout=300.0, again=60.0, poll=0.1)
        found = ask(self.link, by_number, question, longest=longest_answer(size), read=read, patience=patience)
        if len(found) < len(by_number):
            raise IncrowdError(f"{len(found)} of {len(by_number)} parties answered")
        return time.monotonic() - begin

    def used(self) -> dict[str, float]:
        """The processor seconds so far."""
        return {part: processes.processor_seconds(its) for part, its in self.numbers.items()}

    @property
    def numbers(self) -> dict[str, list[int]]:
        """The processes, by the part that they take."""
        link = self.link.processes
        superlink = sorted(processes.family(link["superlink"]))
        return {"superlink": superlink, "server": [os.getpid()], "party": [*self.waiting]}


@contextmanager
def _attending(
    place: Path, names: Sequence[str], port: int, poll: float, key: Ed25519PrivateKey
) -> Iterator[list[int]]:
    """Parties, dealt to some processes."""
    context = multiprocessing.get_context("spawn")
    stop, server = context.Event(), key.public_key().public_bytes_raw()
    some = min(PROCESSES, len(names))
    started = [
        context.Process(target=_attend, args=(place, names[first::some], port, poll, server, stop))
        for first in range(some)
    ]
    for each in started:
        each.start()
    try:
        yield [each.pid for each in started if each.pid is not None]
    finally:
        stop.set()
        for each in started:
            each.join(20)
            each.kill()


def _attend(place: Path, names: Sequence[str], port: int, poll: float, server: bytes, stop: Event) -> None:
    """What a process does: a thread for each of its parties."""
    ended = threading.Event()
    known = Ed25519PublicKey.from_public_bytes(server)
    for name in names:
        where = (place / "server" / AUTHORITY).read_text(), place / name
        line = PartyLine(f"127.0.0.1:{port}", *where)
        handler = partial(_answer, name=name, server=known, key=answer_key(place / name))
        rest = {"poll": poll, "idle_poll": poll}
        threading.Thread(target=attend, args=(line, handler, ended), kwargs=rest, daemon=True).start()
    stop.wait()
    ended.set()
    time.sleep(2.0)


def _answer(question: bytes, *, name: str, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> bytes:
    """A contribution as it is clipped to a length of 2^18 steps, instead of one that was trained."""
    asked = Request.read(question, key=server, most=MOST)
    size = asked.weights.size
    drawn = np.random.default_rng(asked.place.round).normal(0.0, 2**18 / np.sqrt(size), size)
    answer = PartyAnswer(
        place=_place(size, asked.place.round, name), steps=np.rint(drawn).astype(np.int64), unclipped=0
    )
    return answer.to_bytes(key, wide=4)


def _place(size: int, number: int, party: str) -> Place:
    return Place(plan=f"{size:064}", round=number, party=party)


def _expected(place: Place, size: int) -> Expected:
    return Expected(place=place, size=size, contributions=1, largest=2.0**19)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
