"""Asks nodes all at once, over Flower, and takes the first answer of each that can be read.

Flower's own `send_and_receive` looks every three seconds and waits for the dead. Here silent nodes are asked again, for
a message to a node that was killed is lost without an error; what comes after a round is over is dropped; and nobody is
waited for again and again who is not there.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from incrowd import _validate
from incrowd.errors import DataError
from incrowd.flower.attendance import Attendance

if TYPE_CHECKING:
    from flwr.app import RecordDict

T = TypeVar("T")

MESSAGE_TYPE = "train.incrowd"
_RECORD, _VALUE = "incrowd", "frame"


class Clock(Protocol):
    """Tells and passes time."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def wait(self, seconds: float) -> None:
        """Let so many seconds pass."""
        ...


class SystemClock:
    """The machine's own clock, which nobody sets back."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        time.sleep(seconds)


class Line(Protocol):
    """The way to nodes and back, for opaque bytes."""

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Put one question to several nodes, who have so many seconds: the number of each message, and its node."""
        ...

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """The answers that have come, of at most so many bytes, each with the number of the message it answers."""
        ...


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is waited for answers: a look every `poll` seconds, silent nodes are asked again after `again`, then
    after twice as long, and so on, for each time costs the SuperLink a whole message; and after `timeout` a round goes
    on without them. Who stays away is not waited for again and again: see `Attendance`.

    With `all_needed` nobody is asked twice, and whatever is missing is an error: of simulated blocks each is needed.
    """

    timeout: float = 600.0
    again: float = 5.0
    poll: float = 0.1
    all_needed: bool = False
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        _validate.positive(timeout=self.timeout, again=self.again, poll=self.poll)


def ask(
    line: Line,
    frames: Mapping[int, bytes],
    *,
    longest: int,
    read: Callable[[int, bytes], T],
    patience: Patience,
    attendance: Attendance | None = None,
) -> dict[int, T]:
    """The first answer of each node to its frame, as `read` understands it.

    Guarantee: a node counts once, whatever is sent twice; what `read` refuses (`DataError`) is as if it had not come;
    an answer that comes after this returned is dropped.

    Edge cases: a node that does not answer in time is not in the result; where all are needed, it is a `DataError`.
    """
    clock, found, owners = patience.clock, dict[int, T](), dict[str, int]()
    begin, again, attendance = clock.now(), 0.0, attendance or Attendance()
    asked = attendance.begin(frames, now=begin, timeout=patience.timeout)
    while True:
        silent = {node: frame for node, frame in frames.items() if node in asked and node not in found}
        elapsed = clock.now() - begin
        if not silent or elapsed >= patience.timeout:
            break
        if attendance.enough(silent, elapsed=elapsed, least=patience.again):
            break
        if elapsed >= again:
            owners |= _pushed(line, silent, patience.timeout - elapsed)
            again = math.inf if patience.all_needed else elapsed + max(patience.again, elapsed)
        wanted = [number for number, node in owners.items() if node in silent]
        for number, answer in line.pull([*wanted, *attendance.late], longest):
            node = owners.get(number)
            attendance.hear(number)
            if node is None or node in found:
                continue
            try:
                found[node] = read(node, answer)
            except DataError:
                if patience.all_needed:
                    raise
        if len(found) < len(asked):
            clock.wait(patience.poll)
    attendance.end(owners, found)
    if silent and patience.all_needed:
        raise DataError(f"{len(silent)} of {len(frames)} nodes did not answer within {patience.timeout:g} s")
    return found


def _pushed(line: Line, frames: Mapping[int, bytes], seconds: float) -> dict[str, int]:
    """Which node is asked by which message; who is asked the same is asked at once."""
    nodes: dict[bytes, list[int]] = {}
    for node, frame in frames.items():
        nodes.setdefault(frame, []).append(node)
    owners: dict[str, int] = {}
    for frame, asked in nodes.items():
        owners |= line.push(asked, frame, seconds)
    return owners


def record_of(frame: bytes) -> "RecordDict":
    """A frame as Flower carries it: bytes that nothing of Flower's decodes."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_VALUE: frame})})


def frame_in(content: "RecordDict") -> bytes | None:
    """The frame in what Flower carried; None where there is none."""
    record = content.config_records.get(_RECORD) if list(content) == [_RECORD] else None
    value = None if record is None else record.get(_VALUE)
    return value if isinstance(value, bytes) else None
