"""Options, required packages and output that the commands share."""

import json
import logging
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Metrics = Annotated[bool, typer.Option("--metrics", help="Print figures for Prometheus instead of text.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line, instead of words.")]
SettingsFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; without them, the demonstration.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value; may be repeated.")
]
DataFolder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The folder that holds data sets.")]
LedgerOption = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="The ledger of the data; short for --set privacy.ledger."),
]
WitnessOption = Annotated[
    Path | None, typer.Option("--witness", metavar="FILE", help="Its witness; short for --set privacy.witness.")
]


def ledger_overrides(ledger: Path | None, witness: Path | None) -> list[str]:
    """The two options as settings."""
    places = {"privacy.ledger": ledger, "privacy.witness": witness}
    return [f"{key}={json.dumps(str(path))}" for key, path in places.items() if path is not None]


def need(extra: str, *packages: str) -> None:
    """Refuse at once where a package of an extra is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy=f"pip install 'incrowd[{extra}]' brings it")


def need_training() -> None:
    """Refuse at once where the packages that train are not installed."""
    need("train", "pydantic", "safetensors", "torch")


def words(text: str) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(field: str, text: str) -> tuple[float, ...]:
    """The numbers of a list with commas."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(field=field, value=text, remedy="give a number, or several with commas between") from error


def whole_numbers(field: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a list with commas; 1e4 is one."""
    given = numbers(field, text)
    if not all(number.is_integer() for number in given):  # nor is one that is not finite
        raise ConfigError(field=field, value=text, remedy="give whole numbers")
    return tuple(int(number) for number in given)


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


def print_result(facts: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or a line for each fact."""
    print_json(facts) if as_json else print_facts(facts)


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
