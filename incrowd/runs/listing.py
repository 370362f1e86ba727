"""The runs and the searches below a folder, and what each has spent."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError, DataError
from incrowd.runs.folder import DATABASE, PRIVATE, SUMMARY, database_in, settings_in
from incrowd.runs.search_ledger import SEARCH
from incrowd.runs.search_report import Row
from incrowd.runs.sweep import RESULT


def listed(folder: Path) -> list[Row]:
    """A row for each run and each search below a folder, by name: where it is, whom it protects, how far it has got,
    what it has spent.

    A search is one row: its runs are its own business, and of a private selection nobody's.

    Edge cases: a folder that is not there is a `ConfigError`; a run that cannot be read has a row that says so.
    """
    if not folder.is_dir():
        raise ConfigError(field="folder", value=str(folder), remedy="name a folder with runs in it")
    return list(_below(folder))


def _below(folder: Path) -> Iterator[Row]:
    for place, folders, files in os.walk(folder):
        path, folders[:] = Path(place), sorted(folders)
        if SEARCH in files or DATABASE in files:
            folders.clear()
            yield _row(path, search=SEARCH in files)


def _row(path: Path, *, search: bool) -> Row:
    row: Row = {"run": str(path), "unit": None, "state": None, "rounds": None, "epsilon": None, "delta": None}
    row |= {"simulated": None, "data": None}
    try:
        return row | (_of_a_search(path) if search else _of_a_run(path))
    except (DataError, KeyError, TypeError, ValueError) as error:
        return row | {"state": f"cannot be read: {error}"}


def _of_a_run(path: Path) -> Row:
    settings = settings_in(path)
    config, planned = settings["config"], settings["rounds"]
    with database_in(path) as database:
        records = database.rounds()
    over = (path / SUMMARY).is_file() and not (path / PRIVATE).exists()
    summary: dict[str, Any] = json.loads((path / SUMMARY).read_text()) if over else {}
    return {
        "unit": config["privacy"].get("unit", "client"),
        "state": "over" if over else f"after {len(records)} of {planned} rounds",
        "rounds": len(records),
        "epsilon": summary.get("epsilon", max((record.epsilon for record in records), default=0.0)),
        "delta": config["privacy"]["delta"],
        "simulated": config["run"]["seed"] is not None,
        "data": _data(config),
    }


def _of_a_search(path: Path) -> Row:
    search = json.loads((path / SEARCH).read_text())["search"]
    config, over = search["configs"][0], (path / RESULT).is_file()
    result: dict[str, Any] = json.loads((path / RESULT).read_text()) if over else {}
    return {
        "unit": config["privacy"].get("unit", "client"),
        "state": f"a search, {'over' if over else 'not over'}",
        "epsilon": result.get("epsilon_of_search"),
        "delta": config["privacy"]["delta"],
        "simulated": config["run"]["seed"] is not None,
        "data": _data(config),
    }


def _data(config: dict[str, Any]) -> str:
    data = config["data"]
    return str(data.get("identity") or data.get("file") or data["name"])
