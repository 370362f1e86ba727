"""The parts of a run, or of a search, that may be handed on, in a separate folder: an allow-list."""

import csv
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.events import event_to_json
from incrowd.runs.folder import (
    EVALUATION,
    LEDGER,
    MODEL,
    PRIVATE,
    RESULT,
    RESULT_KEYS,
    ROW_KEYS,
    RUNS,
    SEARCH,
    SEARCH_KEYS,
    SILOS,
    STATEMENT,
    STATEMENT_TEXT,
    SUMMARY,
    Record,
    database_in,
    part,
    payer_in,
    settings_in,
    shown_settings,
)
from incrowd.runs.ledgers import RunLedger, own_place

Files = Iterator[tuple[str, bytes]]

_ROUND = ("round", "epsilon", "clip_norm", "noise_std", "accuracy", "loss", "lost")


def export(folder: Path, out: Path) -> list[str]:
    """Copy what may be handed on of the finished run or search in a folder; the names of the files.

    Guarantee: nothing is written but what `incrowd.runs.folder` lists, and only when all of it is complete; every
    file has the same date. The umask decides who can read the files: they are to be handed on.
    """
    folder, out = folder.resolve(), out.absolute()
    if out.exists() or out.is_symlink():
        raise ConfigError(field="out", value=str(out), remedy="name a folder that does not exist yet")
    if folder in out.parents:
        raise ConfigError(field="out", value=str(out), remedy="name a new folder outside of the run")
    if any(place.exists() and not place.is_dir() for place in out.parents):
        raise ConfigError(field="out", value=str(out), remedy="it would lie in a file: name a new folder")
    files = dict(_of_a_search(folder) if (folder / SEARCH).is_file() else _of_a_run(folder))
    fresh = out.with_name(f"{out.name}.{secrets.token_hex(8)}{_files.PART}")
    try:
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for path in (*fresh.rglob("*"), fresh):
            _files.undate(path)
        fresh.rename(out)
    finally:
        _files.remove(fresh)
    return sorted(files)


def _of_a_run(folder: Path) -> Files:
    settings = settings_in(folder)
    _check_over(folder, folder / SUMMARY, remedy=f"it is not over: go on with `incrowd resume {folder}`")
    for name in (MODEL, STATEMENT_TEXT, STATEMENT):
        yield name, _content(folder / name)
    if (folder / EVALUATION).exists():
        yield EVALUATION, _content(folder / EVALUATION)
    yield SUMMARY, _json(part(_read(folder / SUMMARY), RESULT_KEYS))
    yield "settings.json", _json(shown_settings(settings["config"]) | {"version": settings["version"]})
    with database_in(folder) as database:
        yield "rounds.csv", _rounds(database.rounds())
    kept, statements = payer_in(folder), _read(folder / STATEMENT)
    if "silos" not in kept:
        yield "ledger.json", _json(_spent(kept, own=folder / LEDGER))
        return
    silos = [party for party, one in statements.items() if isinstance(one, dict)]
    for silo, ledger in zip(silos, kept["silos"], strict=True):
        yield f"{SILOS}/{silo}/{STATEMENT_TEXT}", (statements[silo]["text"] + "\n").encode()
        yield f"{SILOS}/{silo}/{STATEMENT}", _json(statements[silo])
        yield f"{SILOS}/{silo}/ledger.json", _json(_spent(ledger, own=own_place(folder, silo)))


def _of_a_search(folder: Path) -> Files:
    _check_over(folder, folder / RESULT, remedy="it is not over: the same command goes on with it")
    result = _read(folder / RESULT)
    rows = []
    for row in result["runs"]:
        place = f"{RUNS}/{Path(row['run']).name}"
        yield f"{place}/{MODEL}", _content(folder / place / MODEL)
        rows.append({**part(row, ROW_KEYS), "run": place})
    best = result["best"]
    chosen = None if best is None else next(row for row in rows if Path(row["run"]).name == Path(best["run"]).name)
    shown = {**part(result, SEARCH_KEYS), "runs": rows, "best": chosen and {**chosen, **part(best, ROW_KEYS)}}
    yield RESULT, _json(shown)
    yield STATEMENT_TEXT, (result["statement"]["text"] + "\n").encode()
    yield STATEMENT, _json(result["statement"])
    ledger = _read(folder / SEARCH)["ledger"]
    if ledger is not None:
        yield "ledger.json", _json(_spent(ledger, own=folder / LEDGER))


def _check_over(folder: Path, result: Path, *, remedy: str) -> None:
    if not result.is_file() or (folder / PRIVATE).exists():
        raise ConfigError(field="run", value=str(folder), remedy=remedy)


def _spent(ledger: Mapping[str, Any], *, own: Path) -> dict[str, Any]:
    """The public part of a ledger: the data, the spending of all that is charged to it, and its last hash."""
    with RunLedger.from_json(ledger).open(own) as opened:
        tally, name = opened.verify(), opened.data_identity.name
        return {
            "data": Path(name).name if Path(name).is_absolute() else name,  # a path is nobody else's business
            "relation": opened.relation.name,
            "budget": {"epsilon": opened.budget.epsilon, "delta": opened.budget.delta},
            "epsilon": opened.spent().epsilon,
            "events": [{"event": event_to_json(event), "count": count} for event, count in tally.spent()],
            "head": tally.head,
        }


def _rounds(records: list[Record]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_ROUND)
    writer.writerows([getattr(record, name) for name in _ROUND] for record in records)
    return text.getvalue().encode()


def _content(path: Path) -> bytes:
    """A file as it is; a link, which might lead to something else, is refused."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DataError(f"{path} is no plain file of the run, so it is not handed on: put the right one there")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): put it back, or allow this user to") from error


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(_content(path)))


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
