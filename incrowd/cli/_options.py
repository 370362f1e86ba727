"""Options and arguments that commands share, and the packages that they need."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd.errors import ConfigError


def option(text: str, metavar: str | None = None, *names: str) -> Any:
    """An option with its help; its placeholder and names are those of the parameter unless they are given."""
    return typer.Option(*names, help=text, metavar=metavar)


def flag(name: str, text: str) -> Any:
    """A flag of this name, without its negative."""
    return typer.Option(name, help=text)


def argument(metavar: str, text: str) -> Any:
    """An argument with its placeholder and its help."""
    return typer.Argument(metavar=metavar, help=text)


Json = Annotated[bool, flag("--json", "Print one JSON object instead of text.")]
Metrics = Annotated[bool, flag("--metrics", "Print figures for Prometheus instead of text.")]
LogJson = Annotated[bool, flag("--log-json", "Log one JSON object a line, instead of words.")]
SettingsFile = Annotated[Path | None, argument("[CONFIG.toml]", "Settings; without them, the demonstration.")]
Overrides = Annotated[list[str] | None, option("Another value; may be repeated.", "KEY=VALUE", "--set")]
DataFolder = Annotated[Path | None, option("The folder that holds data sets.", "DIR", "--data")]
LedgerOption = Annotated[Path | None, option("The data's ledger; short for --set privacy.ledger.", "FILE", "--ledger")]
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
