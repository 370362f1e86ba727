"""The folder of a run or a search: its files, which docs/runs.md and docs/sweep.md list, and what may be handed on."""

import csv
import errno
import json
import math
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.events import event_to_json
from incrowd.privacy.statement import Claims, Statement

_VERSION = 3
_SCHEMA = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, epsilon REAL NOT NULL, seconds REAL, clients_per_second REAL, "
    "clip_norm REAL, noise_std REAL, accuracy REAL, loss REAL, lost INTEGER NOT NULL, simulation TEXT, silos TEXT)",
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One round as it is remembered. Public, but for what only a simulation has.

    `epsilon` is what all rounds up to this one cost together. `lost` marks a round that a crash cut off after it had
    been paid for: nothing of it was used. `simulation` holds what only a simulation may look at, and is None otherwise;
    so are `seconds` and `clients_per_second`, because the duration of a round reveals who took part.
    """

    round: int
    epsilon: float
    seconds: float | None = None
    clients_per_second: float | None = None
    clip_norm: float | None = None
    noise_std: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    lost: bool = False
    simulation: Mapping[str, object] | None = None
    silos: Sequence[Mapping[str, object]] | None = None

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON data."""
        return asdict(self)


class Database:
    """The settings and the rounds of one run.

    Guarantee: the schema is created in one transaction, and so is every write; a round that is added again replaces the
    old row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._named():
            _files.create(path)
            # The collector closes it in whatever thread it runs.
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            _files.closed_with(self, self._connection)
            self._connection.row_factory = sqlite3.Row
            self._begin()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run."""
        return {name: json.loads(value) for name, value in self._connection.execute("SELECT * FROM settings")}

    def write_settings(self, settings: Mapping[str, object]) -> None:
        """Write all settings in one transaction."""
        rows = [(name, json.dumps(value, allow_nan=False)) for name, value in settings.items()]
        with self._named():
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)
            self._connection.execute("COMMIT")

    def add(self, record: Record) -> None:
        """Write a round."""
        row = record.to_json()
        nested = {name: json.dumps(row[name]) for name in _NESTED if row[name] is not None}
        with self._named():
            self._connection.execute(_INSERT, row | nested)

    def rounds(self) -> list[Record]:
        """All rounds, in order."""
        with self._named():
            rows = [*map(dict, self._connection.execute("SELECT * FROM rounds ORDER BY round"))]
        for row in rows:
            row |= {name: json.loads(row[name]) for name in _NESTED if row[name] is not None}
        return [Record(**row | {"lost": bool(row["lost"])}) for row in rows]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in SQLite's errors."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _OF_THE_DISK:
                raise OSError(errno.EIO, str(error), str(self.path)) from error
            raise DataError(f"{self.path} is not the database of a run: {error}") from error

    def _begin(self) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version == 0 and execute("SELECT * FROM sqlite_master").fetchone():
            raise DataError(f"{self.path} is another program's database, not that of a run: name the run's folder")
        if version not in (0, _VERSION):
            remedy = f"this incrowd writes {_VERSION}: go on with the version that made it"
            raise DataError(f"{self.path} is of version {version}, and {remedy}")
        if version == 0:  # a reader changes nothing
            for statement in (*_SCHEMA, f"PRAGMA user_version = {_VERSION}"):
                execute(statement)
        execute("COMMIT")


_NESTED = ("simulation", "silos")
_OF_THE_DISK = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
_COLUMNS = [field.name for field in fields(Record)]
_INSERT = f"INSERT OR REPLACE INTO rounds ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"  # noqa: S608 - our own names


DATABASE, LEDGER, PAYER, CHECKPOINTS, PRIVATE = "run.sqlite", "ledger.sqlite", "ledger.json", "checkpoints", "private"
MODEL, STATEMENT_TEXT, STATEMENT, SUMMARY = "model.safetensors", "statement.txt", "statement.json", "summary.json"
EVALUATION, PAGE, LOCK, SILOS, START = "evaluation.json", "report.html", "run.lock", "silos", "start.safetensors"
SEARCH, RESULT, RUNS = "search.json", "result.json", "runs"

Summary = dict[str, Any]


def check_unused(folder: Path, *names: str) -> None:
    """Refuse a file, and a folder with any of these files of another run (`ConfigError`)."""
    remedy = None
    if taken := next((place for place in (folder, *folder.parents) if place.exists() and not place.is_dir()), None):
        remedy = f"{taken.name} is a file: name a new folder"
    elif (folder / SEARCH).exists():
        remedy = "it holds a search: name another folder"
    elif held := next((name for name in names if (folder / name).exists()), None):
        remedy = f"it holds {held} of a run: go on with `incrowd resume {folder}`, or name another folder"
    if remedy is not None:
        raise ConfigError(field="out", value=str(folder), remedy=remedy)


def own_place(folder: Path, silo: str) -> Path:
    """The place of a silo's ledger in the run's folder."""
    return folder / SILOS / silo / LEDGER


def database_in(folder: Path) -> "closing[Database]":
    """The run's database, for as long as a `with` block lasts."""
    return closing(Database(folder / DATABASE))


def settings_in(folder: Path) -> Summary:
    """The settings of the run in a folder."""
    if (folder / SEARCH).is_file():
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
    """The summary of the run in a folder."""
    path = folder / SUMMARY
    if not path.exists():
        raise ConfigError(field="run", value=str(folder), remedy="it is not over: train it to its end")
    return dict(json.loads(path.read_text()))


def write_payer(folder: Path, ledger: Mapping[str, object]) -> None:
    """Note the ledger that the run is charged to. It is not among the settings, which others may see."""
    _files.write(folder / PAYER, json.dumps(ledger, indent=1))


def payer_in(folder: Path) -> Summary:
    """The ledger that `write_payer` noted."""
    try:
        return dict(json.loads((folder / PAYER).read_text()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{folder / PAYER} cannot be read ({why}), and says what is charged: put it back") from error


def write_results(folder: Path, claims: Statement | Claims, summary: Summary) -> Summary:
    """Write the claims and the result of a run; the summary is returned with the claims and the folder."""
    summary = {**summary, "statement": claims.to_json(), "run": str(folder)}
    _files.write(folder / STATEMENT_TEXT, claims.text() + "\n")
    _files.write(folder / STATEMENT, json.dumps(summary["statement"], indent=1))
    _files.write(folder / SUMMARY, json.dumps(summary, indent=1, allow_nan=False))
    return summary


RESULT_KEYS = (
    "accuracy", "loss", "metrics", "data", "clients", "test_set", "rounds", "rounds_lost", "communications", "epsilon",
    "delta", "budget", "epsilon_by_silo", "stopped", "noise_multiplier", "simulated",
    "verdict",
)  # fmt: skip
"""Parts of a run's summary that may be handed on."""

SEARCH_KEYS = (
    "epsilon_of_search", "delta", "holds", "settings_compared", "validation_set", "statement",
)  # fmt: skip
"""Parts of a search's result that may be handed on, besides its rows."""

ROW_KEYS = ("settings", "accuracy", "loss", "epsilon", "rounds")
ROUND_KEYS = ("round", "epsilon", "clip_norm", "noise_std", "accuracy", "loss", "lost")

SHOWN = {
    "data": ("alpha", "blanks", "classes", "client", "clients", "columns", "decimal", "delimiter", "encoding",
             "features", "federation", "function", "holdout_clients", "identity", "label", "label_range",
             "missing_texts", "name", "names", "offset", "partition", "per_client", "public", "scale", "shape",
             "source", "test_clients", "thousands", "type", "validation"),
    "features": ("bins", "buckets", "centred", "constant", "dimensions", "longest", "map", "module", "name",
                 "octave", "padding", "raw", "reads", "stride"),
    "local": ("algorithm", "batch_size", "batches", "epochs", "label_distribution", "label_shares",
              "learning_rate", "loss", "momentum", "optimizer", "physical_batch", "proximal", "shuffle",
              "weight_decay"),
    "model": ("bias", "hidden", "init_scale", "kind", "label_range", "module"),
    "privacy": ("accountant", "clip", "clip_norm", "cohort", "colluders", "delta",
                "epsilon", "groups", "grow_from", "noise", "noise_multiplier",
                "noise_by", "records", "released_before", "room", "rounds", "sampling", "unit"),
    "run": ("checkpoint_every", "chunk", "compile", "diagnose", "randomness", "report_every", "unavailable"),
    "server": ("adaptivity", "average", "decay", "kind", "learning_rate", "momentum"),
}  # fmt: skip
"""The settings that are handed on, section by section."""


def shown_settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a run that may be handed on."""
    return {
        section: {name: config[section][name] for name in names if name in config[section]}
        for section, names in SHOWN.items()
        if section in config
    }


def part(content: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The part of a mapping that has these keys."""
    return {key: content[key] for key in keys if key in content}


def csv_of(*rows: Iterable[object]) -> str:
    """Rows as lines of a table, with commas between."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def ranked(rows: Sequence[Summary]) -> list[Summary]:
    """The rows, the one with the highest accuracy first (without one, with the least loss; diverged weights last)."""

    def merit(row: Summary) -> tuple[float, float]:
        accuracy, loss = row.get("accuracy"), row.get("loss")
        return -math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss

    return sorted(rows, key=merit, reverse=True)


def export(folder: Path, out: Path) -> list[str]:
    """Copy what may be handed on of the finished run or search in a folder; the names of the files.

    Guarantee: nothing is written but what this module lists, and only when all of it is complete; every file has the
    same date. The umask decides who can read the files: they are to be handed on.
    """
    folder, out = folder.resolve(), out.absolute()
    remedy = None
    if out.exists() or out.is_symlink():
        remedy = "name a folder that does not exist yet"
    elif folder in out.parents:
        remedy = "name a new folder outside of the run"
    elif any(place.exists() and not place.is_dir() for place in out.parents):
        remedy = "it would lie in a file: name a new folder"
    if remedy is not None:
        raise ConfigError(field="out", value=str(out), remedy=remedy)
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


def _of_a_run(folder: Path) -> Iterator[tuple[str, bytes]]:
    settings = settings_in(folder)
    _check_over(folder, folder / SUMMARY, remedy=f"it is not over: go on with `incrowd resume {folder}`")
    for name in (MODEL, STATEMENT_TEXT, STATEMENT):
        yield name, _content(folder / name)
    if (folder / EVALUATION).exists():
        yield EVALUATION, _content(folder / EVALUATION)
    yield SUMMARY, _json(part(_read(folder / SUMMARY), RESULT_KEYS))
    yield "settings.json", _json(shown_settings(settings["config"]) | {"version": settings["version"]})
    with database_in(folder) as database:
        rounds = [[getattr(record, name) for name in ROUND_KEYS] for record in database.rounds()]
    yield "rounds.csv", csv_of(ROUND_KEYS, *rounds).encode()
    kept, statements = payer_in(folder), _read(folder / STATEMENT)
    if "silos" not in kept:
        yield "ledger.json", _json(_spent(kept, own=folder / LEDGER))
        return
    silos = [party for party, one in statements.items() if isinstance(one, dict)]
    for silo, ledger in zip(silos, kept["silos"], strict=True):
        yield f"{SILOS}/{silo}/{STATEMENT_TEXT}", (statements[silo]["text"] + "\n").encode()
        yield f"{SILOS}/{silo}/{STATEMENT}", _json(statements[silo])
        yield f"{SILOS}/{silo}/ledger.json", _json(_spent(ledger, own=own_place(folder, silo)))


def _of_a_search(folder: Path) -> Iterator[tuple[str, bytes]]:
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
    from incrowd.runs.ledgers import RunLedger

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
