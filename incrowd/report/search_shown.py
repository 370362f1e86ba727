"""What may be shown of a search: the settings compared and its result."""

from pathlib import Path
from typing import Any

from incrowd.report import ledger_shown
from incrowd.report.plain import Shown, ShownFacts
from incrowd.report.reading import json_in
from incrowd.report.run_shown import PROMISE_KEYS
from incrowd.runs.folder import LEDGER, RESULT, ROW_KEYS, SEARCH, SEARCH_KEYS, SHOWN, part, shown_settings


def search_in(folder: Path) -> Shown:
    """What may be shown of the search in a folder; before it is over, what is compared and nothing of how it goes."""
    told = json_in(folder / SEARCH)
    over = (folder / RESULT).is_file()
    result = json_in(folder / RESULT) if over else {}
    config: dict[str, Any] = told["search"]["configs"][0]
    shown: ShownFacts = part(result, SEARCH_KEYS) | {
        "rows": [_row(row) for row in result.get("runs", ())],
        "best": _row(result["best"]) if result.get("best") else None,
    }
    statement = result.get("statement") or {}
    ledger = told.get("ledger")
    return Shown(
        kind="search",
        name=folder.name,
        data=ledger_shown.name_of(str(config["data"].get("identity") or config["data"].get("name"))),
        unit=str(config["privacy"].get("unit", "client")),
        over=over,
        simulated=config["run"].get("seed") is not None,
        public=bool(config["data"].get("public", False)),
        epsilon=result.get("epsilon_of_search"),
        delta=config["privacy"]["delta"],
        clients=config["data"].get("clients"),
        settings=shown_settings(config),
        promises={"": part(statement, PROMISE_KEYS)} if statement else {},
        ledgers=[ledger_shown.of_run(ledger, own=folder / LEDGER, party="")] if over and ledger else (),
        search={name: value for name, value in shown.items() if name != "statement"},
    )


def _row(row: ShownFacts) -> ShownFacts:
    """A run of the search, with those of its settings that may be shown."""
    settings = {key: value for key, value in row["settings"].items() if _may_be_shown(key)}
    return part(row, ROW_KEYS) | {"settings": settings}


def _may_be_shown(key: str) -> bool:
    section, _, rest = key.partition(".")
    return rest.partition(".")[0] in SHOWN.get(section, ())
