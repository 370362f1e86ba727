"""Options, required packages and output that the commands share."""

import json
import logging
import re
import sys
from collections.abc import Container, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd._log import metric
from incrowd.errors import ConfigError


def option(text: str, metavar: str | None = None, *names: str) -> Any:
    """An option with its help; its placeholder and names are those of the parameter unless they are given."""
    return typer.Option(*names, help=text, metavar=metavar)


def argument(metavar: str, text: str) -> Any:
    """An argument with its placeholder and its help."""
    return typer.Argument(metavar=metavar, help=text)


Json = Annotated[bool, option("Print one JSON object instead of text.", None, "--json")]
Metrics = Annotated[bool, option("Print figures for Prometheus instead of text.", None, "--metrics")]
LogJson = Annotated[bool, option("Log one JSON object a line, instead of words.", None, "--log-json")]
SettingsFile = Annotated[Path | None, argument("[CONFIG.toml]", "Settings; without them, the demonstration.")]
Overrides = Annotated[list[str] | None, option("Another value; may be repeated.", "KEY=VALUE", "--set")]
DataFolder = Annotated[Path | None, option("The folder that holds data sets.", "DIR", "--data")]
LedgerOption = Annotated[
    Path | None,
    option("The ledger of the data; short for --set privacy.ledger.", "FILE", "--ledger"),
]
WitnessOption = Annotated[Path | None, option("Its witness; short for --set privacy.witness.", "FILE", "--witness")]


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


def need_party() -> None:
    """Refuse at once where the packages of a party are not installed."""
    need_training()
    need("flower", "cryptography")


def words(text: str) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(field: str, text: str, *, least: int = 0) -> tuple[float, ...]:
    """The numbers of a list with commas, at least so many."""
    remedy = "give a number, or several with commas between"
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(field=field, value=text, remedy=remedy) from error
    if len(found) < least:
        raise ConfigError(field=field, value=text, remedy=remedy)
    return found


def whole_numbers(field: str, text: str, *, least: int = 0) -> tuple[int, ...]:
    """The whole numbers of a list with commas, at least so many; 1e4 is one."""
    given = numbers(field, text, least=least)
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


def print_result(facts: dict[str, Any], as_json: bool, *, said: str | None = None) -> None:
    """One JSON object; or a sentence; or a line for each fact."""
    if as_json:
        print_json(facts)
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
