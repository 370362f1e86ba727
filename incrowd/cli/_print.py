"""What the commands share on the way out: one JSON object, a list of facts, a table."""

import json
import logging
import re
import sys
from typing import Any

import typer

_NUMBER = re.compile(r"([-+]?[\d.,]+(e[-+]?\d+)?|inf|none|)")


class _OnStandardError(logging.Handler):
    """A line for each record, wherever standard error is by then."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


def say_what_takes_long() -> None:
    """Say on standard error when features are being learnt from made-up pictures, which takes long."""
    log = logging.getLogger("incrowd.learning.features")
    if not log.handlers:
        log.addHandler(_OnStandardError())
        log.setLevel(logging.INFO)


def print_json(content: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(content, allow_nan=False))


def print_facts(facts: dict[str, Any]) -> None:
    """A line for each fact, names and values aligned."""
    width = max(12, *map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:{width}} {short(value)}")


def print_table(rows: list[dict[str, Any]], *, leave_out: set[str]) -> None:
    """A table of these rows, whose columns are the names in the first; texts begin below each other, numbers end."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    names = [name for name in (rows[0] if rows else {}) if name not in leave_out]
    for name in names:
        numbers = all(_NUMBER.fullmatch(_cell(row[name])) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def short(value: object) -> object:
    """A value as a reader wants it: six digits, the word none, what is in it with commas between."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {short(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(str(short(inner)) for inner in value) or "none"
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else value
