"""Output of the commands: one JSON object, or facts and tables for people."""

import json
import logging
import re
import sys
from collections.abc import Callable, Container, Mapping
from typing import Any

import typer

from incrowd._log import metric

_NUMBER = re.compile(r"([-+]?[\d.,]+(e[-+]?\d+)?|inf|none|)")


def log_slow_features() -> None:
    """Log to standard error when features are learnt from synthetic pictures, which takes long."""
    log = logging.getLogger("incrowd.learning.features")
    log.handlers[:] = [logging.StreamHandler()]
    log.setLevel(logging.INFO)


def print_json(content: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(content, allow_nan=False))


def print_result(facts: dict[str, Any], as_json: bool, said: str | Callable[[], object] | None = None) -> None:
    """Print one JSON object; or a sentence; or by a function; or a line for each fact."""
    if as_json:
        print_json(facts)
    elif callable(said):
        said()
    elif said is None:
        print_facts(facts)
    elif said:
        typer.echo(said)


def print_metrics(prefix: str, told: Mapping[str, str], label: str, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Metrics in the text format of Prometheus: `figures` has numbers by the metric and the label's value."""
    for name, words in told.items():
        known = {key: value for key, value in figures[name].items() if value is not None}
        typer.echo(metric(f"{prefix}_{name}", words, known, label=label), nl=False)


def print_facts(facts: dict[str, Any]) -> None:
    """A line for each fact, names and values aligned."""
    width = max(12, *map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:{width}} {short(value)}")


def print_table(rows: list[dict[str, Any]], *, leave_out: Container[str] = ()) -> None:
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
