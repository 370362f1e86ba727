"""The folder of a run, whichever unit it protects: what lies where, and whether a run may begin or go on there."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.statement import Claims, Statement
from incrowd.runs.database import Database

DATABASE, LEDGER, PAYER, CHECKPOINTS, PRIVATE = "run.sqlite", "ledger.sqlite", "ledger.json", "checkpoints", "private"
MODEL, STATEMENT_TEXT, STATEMENT, SUMMARY = "model.safetensors", "statement.txt", "statement.json", "summary.json"
CARD, EVALUATION = "card.md", "evaluation.json"
CURVE, LOCK, SILOS, START = "curve.png", "run.lock", "silos", "start.safetensors"
SERVER = "the server"
"""Whose statement is beside those of the silos, none of which may be called so."""

Summary = dict[str, Any]


def check_unused(folder: Path, *names: str) -> None:
    """A new run may begin here: it is no file, and none of these files of another run is there (`ConfigError`)."""
    taken = next((place for place in (folder, *folder.parents) if place.exists() and not place.is_dir()), None)
    if taken is not None:
        raise ConfigError(field="out", value=str(folder), remedy=f"{taken.name} is a file: name a new folder")
    if (folder / "search.json").exists():
        raise ConfigError(field="out", value=str(folder), remedy="it holds a search: name another folder")
    for name in names:
        if (folder / name).exists():
            raise ConfigError(
                field="out",
                value=str(folder),
                remedy=f"it holds {name} of a run: go on with `incrowd resume {folder}`, or name another folder",
            )


def database_in(folder: Path) -> "closing[Database]":
    """The run's database, for as long as a `with` block lasts."""
    return closing(Database(folder / DATABASE))


def settings_in(folder: Path) -> Summary:
    """What the run in a folder was made with.

    Edge cases: no run there, one that was never begun: refused, with the remedy.
    """
    if (folder / "search.json").is_file():
        remedy = "it is a search: the same incrowd sweep command goes on with it"
        raise ConfigError(field="run", value=str(folder), remedy=remedy)
    if not (folder / DATABASE).is_file():
        raise ConfigError(field="run", value=str(folder), remedy="there is no run; start one with incrowd train")
    with database_in(folder) as database:
        settings = database.settings
    if "config" not in settings:
        raise DataError(f"{folder} was cut off while it was made, and nothing was spent: name another folder")
    return settings


def summary_in(folder: Path) -> Summary:
    """What the run in a folder came to. Edge cases: it is not over: `ConfigError`."""
    path = folder / SUMMARY
    if not path.exists():
        raise ConfigError(field="run", value=str(folder), remedy="it is not over: train it to its end")
    return dict(json.loads(path.read_text()))


def write_payer(folder: Path, ledger: Mapping[str, object]) -> None:
    """Put down which ledger the run is charged to. It is not among the settings, which others may see."""
    _files.write(folder / PAYER, json.dumps(ledger, indent=1))


def payer_in(folder: Path) -> Summary:
    """What `write_payer` put down. Edge cases: it is gone: `DataError`."""
    try:
        return dict(json.loads((folder / PAYER).read_text()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{folder / PAYER} cannot be read ({why}), and says what is charged: put it back") from error


def write_results(folder: Path, claims: Statement | Claims, summary: Summary) -> Summary:
    """Put down what a run may claim and what came out; the summary is given back with the claims and the folder."""
    summary = {**summary, "statement": claims.to_json(), "run": str(folder)}
    _files.write(folder / STATEMENT_TEXT, claims.text() + "\n")
    _files.write(folder / STATEMENT, json.dumps(summary["statement"], indent=1))
    _files.write(folder / SUMMARY, json.dumps(summary, indent=1, allow_nan=False))
    return summary
