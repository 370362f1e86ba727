"""The allow-list of a page: the public facts of a run, a search, a pool or a ledger.

`incrowd.runs.folder` lists what is exported and shown. Moreover, only simulations of public data show figures of raw
contributions, and the page leaves out a ledger's labels, notes, days and paths.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from incrowd.drawdiscard.kept_pool import FILE
from incrowd.drawdiscard.server import PoolFigures
from incrowd.drawdiscard.server import shown as status_of
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.privacy.ledger.chain import Entry
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.registry import Registry
from incrowd.report.reading import json_in, reading
from incrowd.runs.folder import (
    DATABASE,
    EVALUATION,
    LEDGER,
    PAYER,
    PRIVATE,
    RESULT,
    RESULT_KEYS,
    ROUND_KEYS,
    ROW_KEYS,
    SEARCH,
    SEARCH_KEYS,
    SHOWN,
    SUMMARY,
    own_place,
    part,
    shown_settings,
)
from incrowd.runs.ledgers import RunLedger

Facts = Mapping[str, Any]

AUDIT = "audit.json"
DIAGNOSTIC_KEYS = ("between_client_variance", "update_scale", "norms", "fraction_clipped", "noise_to_signal")
EVALUATION_KEYS = (
    "accuracy", "accuracy_std", "loss", "loss_std", "balanced_accuracy", "by_class", "measured", "clients", "epsilon",
    "delta", "noise_multiplier", "noise_by", "simulated", "epsilon_of_all",
)  # fmt: skip
AUDIT_KEYS = ("epsilon_claimed", "epsilon_lower_bound", "confidence", "holds", "simulated")
FINDING_KEYS = (
    "attack", "unit", "claimed", "delta", "lower_bound", "confidence", "auc", "true_positives", "allowed", "trials",
    "note", "holds",
)  # fmt: skip
CHECK_KEYS = ("name", "measured", "stated", "holds", "note")
PROMISE_KEYS = (
    "unit", "relation", "trust", "epsilon", "delta", "accountant", "sampler", "assumed", "not_covered", "caveats",
    "text",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The public facts of one run, search, pool or ledger.

    `name` is the last part of its folder's name. `epsilon` and `delta` are spent so far. `promises` holds each party's
    statement by its name, or the run's under "".
    """

    kind: Literal["clients", "silos", "search", "pool", "ledger"]
    name: str
    data: str
    unit: str
    over: bool
    simulated: bool
    public: bool
    epsilon: float | None
    delta: float | None
    budget: float | None = None
    clients: int | None = None
    planned: int | None = None
    baseline: float | None = None
    version: str | None = None
    result: Facts = field(default_factory=dict)
    settings: Mapping[str, Facts] = field(default_factory=dict)
    promises: Mapping[str, Facts] = field(default_factory=dict)
    rounds: Sequence[Facts] = ()
    schedule: Sequence[Facts] = ()
    silos: Sequence[Facts] = ()
    ledgers: Sequence[Facts] = ()
    evaluations: Sequence[Facts] = ()
    audit: Facts | None = None
    search: Facts | None = None
    pool: Facts | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


def read(folder: Path, *, live: bool = False) -> Shown:
    """Read the run, search, pool or ledger in a folder (or a ledger's file), over or not.

    A `live` page looks every second, so ledgers are priced only once the run is over.

    Guarantee: nothing in the folder changes, and no writer has to wait.

    Edge cases: nothing of the kind, or an attempt of a private search: `ConfigError`; damaged files: `DataError`.
    """
    folder = folder.resolve()
    try:
        if (folder / SEARCH).is_file():
            return _search(folder)
        if (folder / DATABASE).is_file():
            return _run(folder, live=live)
        if (folder / FILE).is_file():
            return _pool(folder)
        if folder.is_file() or (folder / LEDGER).is_file():
            return _ledger(folder)
    except IncrowdError:
        raise
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{folder} is not as incrowd wrote it ({error!r:.80}): put its files back") from error
    remedy = "there is no run, search, pool or ledger: name the folder that incrowd train, sweep or serve wrote"
    raise ConfigError(field="folder", value=str(folder), remedy=remedy)


def read_all(folders: Sequence[Path]) -> list[Shown]:
    """Read several folders, each once."""
    places = [folder.resolve() for folder in folders]
    twice = next((place for place, times in Counter(places).items() if times > 1), None)
    if twice is not None:
        raise ConfigError(field="folder", value=str(twice), remedy="it is named twice: leave one out")
    return told_apart([read(place) for place in places])


def told_apart(shown: Sequence[Shown]) -> list[Shown]:
    """Number the names that several have."""
    times, seen = Counter(one.name for one in shown), Counter[str]()
    named = []
    for one in shown:
        seen[one.name] += 1
        named.append(replace(one, name=f"{one.name} ({seen[one.name]})") if times[one.name] > 1 else one)
    return named


def _run(folder: Path, *, live: bool) -> Shown:
    with reading(folder / DATABASE) as database:
        settings = {name: json.loads(value) for name, value in database.execute("SELECT name, value FROM settings")}
        rows = [dict(row) for row in database.execute("SELECT * FROM rounds ORDER BY round")]
    payer = json_in(folder / PAYER)
    if "config" not in settings:
        raise DataError(f"{folder} was cut off while it was made, and nothing was spent: name another folder")
    if payer.get("search") is not None:
        remedy = "it is an attempt of a private search, which keeps all but its best back: name the search's folder"
        raise ConfigError(field="run", value=str(folder), remedy=remedy)
    config, over = settings["config"], (folder / SUMMARY).is_file() and not (folder / PRIVATE).exists()
    result = part(json_in(folder / SUMMARY), (*RESULT_KEYS, "statement")) if over else {}
    simulated, public = config["run"].get("seed") is not None, bool(config["data"].get("public", False))
    rounds = [_round(row, diagnostics=simulated and public) for row in rows]
    promises, wanted = _promises(result.pop("statement", {})), config["privacy"]
    unit, budget = wanted.get("unit", "client"), wanted["epsilon"]
    silos = unit == "record" and wanted.get("noise_by", "party") == "party"
    return Shown(
        kind="silos" if silos else "clients",
        name=folder.name,
        data=_name_of(str(result.get("data") or _data(config))),
        unit=unit,
        over=over,
        simulated=simulated,
        public=public,
        epsilon=result.get("epsilon", max((row["epsilon"] for row in rounds), default=0.0)),
        delta=result.get("delta", wanted["delta"]),
        budget=float(max(budget) if isinstance(budget, list) else budget),
        clients=settings.get("clients"),
        planned=settings.get("rounds"),
        baseline=_baseline(result),
        version=settings.get("version"),
        result=result,
        settings=shown_settings(config),
        promises=promises,
        rounds=rounds,
        schedule=[part(step, ("rounds", "cohort", "noise_multiplier")) for step in settings.get("schedule") or ()],
        silos=list(_silos(rows, budget, result)) if silos else (),
        ledgers=list(_ledgers(folder, payer, promises, priced=over or not live)) if payer else (),
        evaluations=[part(one, EVALUATION_KEYS) for one in json_in(folder / EVALUATION).get("evaluations", ())],
        audit=_audit(json_in(folder / AUDIT)),
    )


def _round(row: Facts, *, diagnostics: bool) -> Facts:
    seen = json.loads(row.get("simulation") or "{}").get("diagnostics") if diagnostics else None
    kept = None if seen is None else part(seen, DIAGNOSTIC_KEYS)
    return part(row, ROUND_KEYS) | {"lost": bool(row["lost"]), "simulation": kept}


def _promises(statement: Facts) -> dict[str, Facts]:
    if "epsilon" in statement:
        return {"": part(statement, PROMISE_KEYS)}
    return {party: part(one, PROMISE_KEYS) for party, one in statement.items() if isinstance(one, Mapping)}


def _silos(rows: Sequence[Facts], budget: Any, result: Facts) -> Iterator[Facts]:
    """List the epsilon of each silo, and whether its budget is spent, after the run or its last round."""
    spent, stopped = dict(result.get("epsilon_by_silo") or {}), set(result.get("stopped") or ())
    if not result:
        latest = next((row["silos"] for row in reversed(rows) if row.get("silos") not in (None, "[]")), "[]")
        spent = {one["silo"]: one["epsilon"] for one in json.loads(latest)}
        stopped = {one["silo"] for one in json.loads(latest) if one.get("absence") == "budget spent"}
    budgets = budget if isinstance(budget, list) else [budget] * len(spent)
    for (name, epsilon), its in zip(spent.items(), budgets, strict=False):
        yield {"silo": name, "epsilon": epsilon, "budget": its, "stopped": name in stopped}


def _ledgers(folder: Path, payer: Facts, promises: Mapping[str, Facts], *, priced: bool) -> Iterator[Facts]:
    if "silos" not in payer:
        yield _ledger_of_run(payer, own=folder / LEDGER, party="", priced=priced)
        return
    names = list(promises) or sorted(each.name for each in (folder / "silos").glob("*/"))
    for name, ledger in zip(names, payer["silos"], strict=False):
        yield _ledger_of_run(ledger, own=own_place(folder, name), party=name, priced=priced)


def _audit(found: Facts) -> Facts | None:
    if not found:
        return None
    findings, checks = found.get("findings", ()), found.get("checks", ())
    return part(found, AUDIT_KEYS) | {
        "findings": [part(one, FINDING_KEYS) for one in findings],
        "checks": [part(one, CHECK_KEYS) for one in checks],
    }


def _data(config: Facts) -> object:
    return config["data"].get("identity") or config["data"].get("name")


def _baseline(summary: Facts) -> float | None:
    """The accuracy of a constant prediction, where the figure shows accuracy."""
    found: Facts = (summary.get("metrics") or {}).get("baseline") or {}
    known = summary.get("accuracy") is not None and found.get("accuracy") is not None
    return float(found["accuracy"]) if known else None


def _search(folder: Path) -> Shown:
    """Read a search; its runs show once it is over."""
    search, over = json_in(folder / SEARCH), (folder / RESULT).is_file()
    result = json_in(folder / RESULT) if over else {}
    config: dict[str, Any] = search["search"]["configs"][0]
    shown = part(result, SEARCH_KEYS)
    statement, ledger = shown.pop("statement", None), search.get("ledger")
    return Shown(
        kind="search",
        name=folder.name,
        data=_name_of(str(_data(config))),
        unit=str(config["privacy"].get("unit", "client")),
        over=over,
        simulated=config["run"].get("seed") is not None,
        public=bool(config["data"].get("public", False)),
        epsilon=result.get("epsilon_of_search"),
        delta=config["privacy"]["delta"],
        clients=config["data"].get("clients"),
        settings=shown_settings(config),
        promises={"": part(statement, PROMISE_KEYS)} if statement else {},
        ledgers=[_ledger_of_run(ledger, own=folder / LEDGER, party="")] if over and ledger else (),
        search=shown
        | {
            "rows": [_row(row) for row in result.get("runs", ())],
            "best": _row(result["best"]) if result.get("best") else None,
        },
    )


def _row(row: Facts) -> Facts:
    """Show a run of a search with its public settings."""
    settings = {}
    for key, value in row["settings"].items():
        section, _, rest = key.partition(".")
        if rest.partition(".")[0] in SHOWN.get(section, ()):
            settings[key] = value
    return part(row, ROW_KEYS) | {"settings": settings}


def _ledger(place: Path) -> Shown:
    """Read the ledger of data, of a party or of a device."""
    try:
        with Ledger.read(place if place.is_file() else place / LEDGER) as ledger:
            facts, its, budget = _entries_of(ledger, party=""), ledger.data_identity, ledger.budget
    except IncrowdError as error:
        raise ConfigError(field="folder", value=str(place), remedy=f"give a ledger that is intact: {error}") from error
    return Shown(
        kind="ledger",
        name=place.name,
        data=_name_of(its.name),
        unit=its.unit or "client",
        over=True,
        simulated=any(line["seeded"] for line in facts["lines"]),
        public=its.public,
        epsilon=facts["epsilon"],
        delta=budget.delta,
        budget=budget.epsilon,
        ledgers=[facts],
    )


def _ledger_of_run(payer: Facts, *, own: Path, party: str, priced: bool = True) -> Facts:
    """The ledger that a run is charged to, or the problem of one that is unreadable, changed or another."""
    its = RunLedger.from_json(payer)
    try:
        known = Registry.of_user().by_id(its.id)
        path = known.path if known is not None else its.path or own
        with Ledger.read(path, witness=None if known is not None else its.witness) as ledger:
            if ledger.id != its.id:
                return {"party": party, "problem": "another", "lines": []}
            return _entries_of(ledger, party=party, label=its.label, priced=priced)
    except (IncrowdError, OSError):
        return {"party": party, "problem": "unreadable", "lines": []}


def _entries_of(ledger: Ledger, *, party: str, label: str | None = None, priced: bool = True) -> Facts:
    entries = ledger.entries()
    return {
        "party": party,
        "problem": None,
        "data": _name_of(ledger.data_identity.name),
        "relation": ledger.relation.name,
        "budget": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "epsilon": ledger.spent().epsilon if priced else None,
        "head": ledger.head,
        "lines": [_line(entry, label) for entry in entries],
    }


def _line(entry: Entry, label: str | None) -> Facts:
    """Show an entry, and whether a label of it is the run's, without the labels."""
    content = entry.content()
    runs = [[content["event"], 1]] if entry.kind == "charge" else content.get("runs", [])
    number = content["note"].get("round") if entry.kind == "charge" else None
    whose = [content.get(name) for name in ("reservation", "label", "key")]
    return {
        "position": entry.position,
        "kind": entry.kind,
        "event": "; ".join(_event(event) for event, _ in runs),
        "count": sum(count for _, count in runs),
        "round": number if isinstance(number, int) else None,
        "seeded": str(content.get("randomness", "")).startswith("seeded"),
        "own": None if label is None else any(str(one).startswith(label) for one in whose),
        "hash": entry.hash,
    }


def _event(event: Facts) -> str:
    """An accounting event in a few words: its kind, its numbers, and its parts."""
    numbers = [
        f"{name.replace('_', ' ')} {value:.6g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in event.items()
        if isinstance(value, int | float)
    ]
    lists = [value if isinstance(value, list) else [value] for value in event.values()]
    inner = [_event(one) for each in lists for one in each if isinstance(one, Mapping)]
    words = ", ".join([str(event.get("kind", "")).replace("_", " "), *numbers])
    return f"{words} ({'; '.join(inner)})" if inner else words


def _name_of(data: str) -> str:
    """Return the name of data, or the last part of a path."""
    return Path(data).name if Path(data).is_absolute() else data


def _pool(folder: Path) -> Shown:
    """Read the pool that a server last wrote to its folder."""
    try:
        with reading(folder / FILE) as database:
            state = dict(database.execute("SELECT name, content FROM state").fetchall())
            kept = json.loads(state["pool"])
            marks = ", ".join("?" * len(kept["versions"]))
            query = f"SELECT version, weights FROM rows WHERE version IN ({marks})"  # noqa: S608 - question marks alone
            rows = dict(database.execute(query, kept["versions"]).fetchall())
        asked = Specification.from_json(state["specification"])
        held = [np.frombuffer(rows[version], "<f4") for version in kept["versions"]]
        figures = PoolFigures.of(held, accepted=kept["counts"][1], turned=kept["turned"])
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{folder / FILE} is not a whole pool ({error}): put a copy back") from error
    return of_status(status_of(asked, figures), name=folder.name)


_Text = Annotated[str, Field(strict=True, max_length=200_000)]
_Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)] | None
_Numbers = Annotated[dict[_Text, _Number], Field(max_length=200)]


class _Weight(BaseModel):
    feature: _Text
    output: _Text
    weight: _Number


class _Adversary(BaseModel):
    adversary: _Text = ""
    sees: _Text = ""
    epsilon: _Number = None
    delta: _Number = None
    meaning: _Text = ""


class _Status(BaseModel):
    """The shown part of a server's status, with limits: another machine may have written it."""

    name: _Text
    epsilon: _Number
    fingerprint: _Text = ""
    accepted: _Number = None
    turned_away: _Numbers = {}
    repeated: _Number = None
    instances: _Number = None
    size: _Number = None
    delta: _Number = None
    privacy: _Text = ""
    spread: _Numbers = {}
    weights: list[_Weight] = Field([], max_length=200)
    promise: _Text = ""
    statement: _Text = ""
    adversaries: list[_Adversary] = Field([], max_length=200)


def of_status(status: Facts, *, name: str) -> Shown:
    """Read a server's own status (`/status.json`); another object is a `DataError`."""
    try:
        pool = _Status.model_validate(status).model_dump(exclude_unset=True)
    except ValueError as error:
        raise DataError(f"{name!r} did not give the status of a pool ({error}): name another address") from error
    return Shown(
        kind="pool",
        name=name,
        data=pool["name"],
        unit="number" if pool.get("privacy") == "feature" else "contribution",
        over=False,
        simulated=False,
        public=False,
        epsilon=pool["epsilon"],
        delta=pool.get("delta"),
        pool=pool,
    )
