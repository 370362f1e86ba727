"""What a service writes of itself on standard error: a line an event, and nothing of who asked for what."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

REFUSALS_EVERY_S = 60.0
"""Refusals are counted for so long, and told in one line: a flood of requests is none of lines."""


def to_stderr(line: str) -> None:
    """Write a line at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is what the log is


class EventLog:
    """Events of a service: sentences for people, or JSON for programs.

    Guarantee: an event has no address, no ticket and no content of a request.

    Edge cases: start and stop are told as JSON only.
    """

    def __init__(self, *, as_json: bool = False, write: Callable[[str], object] = to_stderr) -> None:
        self.as_json, self._write = as_json, write
        self._trouble: str | None = None
        self._told: Counter[str] = Counter()
        self._since = 0.0

    def tell(self, event: str, **facts: object) -> None:
        """Write an event down."""
        if self.as_json:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._write(json.dumps({"time": time, "event": event, **facts}))
        elif event not in ("start", "stop"):
            self._write(f"incrowd serve: {event}: " + ", ".join(f"{name} {fact}" for name, fact in facts.items()))

    def look(self, trouble: str | None, refused: Mapping[str, int], *, now: float) -> None:
        """Tell what has changed: whether the store is well, and how many requests were refused meanwhile."""
        if trouble != self._trouble:
            self.tell("store_well") if trouble is None else self.tell("store_trouble", why=trouble)
            self._trouble = trouble
        if now - self._since < REFUSALS_EVERY_S:
            return
        more = Counter(refused) - self._told
        if more and self._since:
            self.tell("refused", requests=more.total(), reasons=dict(more), seconds=round(now - self._since))
        self._told, self._since = Counter(refused), now
