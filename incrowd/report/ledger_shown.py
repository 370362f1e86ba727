"""What may be shown of a ledger: what was charged, line by line, with the hashes that bind it together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError, IncrowdError
from incrowd.privacy.ledger.chain import Entry
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.registry import Registry
from incrowd.report.plain import Shown, ShownFacts
from incrowd.runs.ledgers import RunLedger


def ledger_in(place: Path) -> Shown:
    """What may be shown of a ledger by itself: a data set's, a party's or a device's."""
    path = place if place.is_file() else place / "ledger.sqlite"
    try:
        with Ledger.read(path) as ledger:
            facts, its, budget = facts_of(ledger, party=""), ledger.data_identity, ledger.budget
    except IncrowdError as error:
        raise ConfigError(field="folder", value=str(place), remedy=f"give a ledger that is intact: {error}") from error
    return Shown(
        kind="ledger",
        name=place.name,
        data=name_of(its.name),
        unit=its.unit or "client",
        over=True,
        simulated=any(line["seeded"] for line in facts["lines"]),
        public=its.public,
        epsilon=facts["epsilon"],
        delta=budget.delta,
        budget=budget.epsilon,
        ledgers=[facts],
    )


def of_run(payer: Mapping[str, Any], *, own: Path, party: str, priced: bool = True) -> ShownFacts:
    """What may be shown of the ledger that a run is charged to, wherever that lies.

    Edge cases: one that cannot be read now, or is not intact, says so, and nothing else.
    """
    its = RunLedger.from_json(payer)
    try:
        known = Registry.of_user().by_id(its.id)
        path = known.path if known is not None else its.path or own
        with Ledger.read(path, witness=None if known is not None else its.witness) as ledger:
            if ledger.id != its.id:
                return {"party": party, "problem": "another", "lines": []}
            return facts_of(ledger, party=party, label=its.label, priced=priced)
    except (IncrowdError, OSError):
        return {"party": party, "problem": "unreadable", "lines": []}


def facts_of(ledger: Ledger, *, party: str, label: str | None = None, priced: bool = True) -> ShownFacts:
    """Budget, what was spent, and every entry; `label` is the run's that is shown."""
    entries = ledger.entries()
    return {
        "party": party,
        "problem": None,
        "data": name_of(ledger.data_identity.name),
        "relation": ledger.relation.name,
        "budget": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "epsilon": ledger.spent().epsilon if priced else None,
        "head": ledger.head,
        "lines": [_line(entry, label) for entry in entries],
    }


def name_of(data: str) -> str:
    """What data are called; of those that are known by their path the last part."""
    return Path(data).name if Path(data).is_absolute() else data


def event_said(event: Mapping[str, Any]) -> str:
    """An accounting event in a few words: its kind, its numbers, and what it is made of."""
    numbers = [
        f"{name.replace('_', ' ')} {value:.6g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in event.items()
        if isinstance(value, int | float)
    ]
    inner = [event_said(value) for value in event.values() if isinstance(value, Mapping)]
    inner += [
        event_said(one)
        for value in event.values()
        if isinstance(value, list)
        for one in value
        if isinstance(one, Mapping)
    ]
    said = ", ".join([str(event.get("kind", "")).replace("_", " "), *numbers])
    return f"{said} ({'; '.join(inner)})" if inner else said


def _line(entry: Entry, label: str | None) -> ShownFacts:
    content = entry.content()
    runs = [[content["event"], 1]] if entry.kind == "charge" else content.get("runs", [])
    number = content["note"].get("round") if entry.kind == "charge" else None
    whose = [content.get(name) for name in ("reservation", "label", "key")]
    return {
        "position": entry.position,
        "kind": entry.kind,
        "event": "; ".join(event_said(event) for event, _ in runs),
        "count": sum(count for _, count in runs),
        "round": number if isinstance(number, int) else None,
        "seeded": str(content.get("randomness", "")).startswith("seeded"),
        "own": None if label is None else any(str(one).startswith(label) for one in whose),
        "hash": entry.hash,
    }
