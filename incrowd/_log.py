"""The log of a long-running process, and its figures for a monitor.

An event has a name, which stays the same from version to version, and fields.
"""

import datetime
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, Literal

_FIELDS = "incrowd_fields"


def note(logger: logging.Logger, event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event of this name. Its fields are public: no contribution, no address beside what it sent."""
    logger.log(level, event, extra={_FIELDS: fields})


def log_to_stderr(*, as_json: bool) -> None:
    """Let events of incrowd, and warnings of all libraries, be written to standard error from now on.

    Events of the level DEBUG are for programs: they are written as JSON alone.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLog() if as_json else _PlainLog())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("incrowd").setLevel(logging.DEBUG if as_json else logging.INFO)


class _JsonLog(logging.Formatter):
    """One JSON object a line: time, level, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        own = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**getattr(record, _FIELDS, {}), **own}, default=str)


class _PlainLog(logging.Formatter):
    """The time, the event and its fields, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        fields = "; ".join(f"{name}: {value}" for name, value in getattr(record, _FIELDS, {}).items())
        return " ".join(f"{_time(record)} {record.getMessage()} {fields}".split())


def _time(record: logging.LogRecord) -> str:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="seconds")


def metric(
    name: str, told: str, values: Mapping[str, float], *, label: str = "", kind: Literal["counter", "gauge"] = "gauge"
) -> str:
    """One metric in the text format of Prometheus: a value for each value of its label, or one under the key ""."""
    samples = [f"{name}{_labels(label, key)} {value}\n" for key, value in values.items()]
    return f"# HELP {name} {told}\n# TYPE {name} {kind}\n{''.join(samples)}"


def _labels(label: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{label}="{escaped}"}}' if label else ""
