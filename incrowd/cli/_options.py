"""What the commands share on the way in: options that several have, lists with commas, what has to be installed."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

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


def need_training() -> None:
    """Refuse at once, by name, where what trains is not installed."""
    for package in ("pydantic", "safetensors", "torch"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[train]' brings it")


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
