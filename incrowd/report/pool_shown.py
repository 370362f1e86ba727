"""What may be shown of a pool of draw and discard: from its server's folder, running or not, or from its status."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from incrowd.drawdiscard.kept_pool import FILE
from incrowd.drawdiscard.showing import PoolFigures, shown
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import DataError
from incrowd.report.plain import Shown
from incrowd.report.reading import reading
from incrowd.runs.folder import part

POOL_KEYS = (
    "name", "fingerprint", "accepted", "turned_away", "repeated", "instances", "size", "epsilon", "delta", "privacy",
    "spread", "weights", "promise", "statement", "adversaries", "paused",
)  # fmt: skip
"""What of a server's status may be shown: all of it is shown by the server itself, too."""


def pool_in(folder: Path) -> Shown:
    """What may be shown of the pool in a server's folder, as it was last put on disk."""
    try:
        with reading(folder / FILE) as database:
            state = dict(database.execute("SELECT name, content FROM state").fetchall())
            told = json.loads(state["pool"])
            marks = ", ".join("?" * len(told["versions"]))
            query = f"SELECT version, weights FROM rows WHERE version IN ({marks})"  # noqa: S608 - question marks alone
            rows = dict(database.execute(query, told["versions"]).fetchall())
        asked = Specification.from_json(state["specification"])
        held = [np.frombuffer(rows[version], "<f4") for version in told["versions"]]
        average = np.frombuffer(state["average"], np.float64) if state.get("average") else None
        figures = PoolFigures.of(held, average, accepted=told["counts"][1], turned=told["turned"])
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{folder / FILE} is not a whole pool ({error}): put a copy back") from error
    return of_status(shown(asked, figures) | {"paused": bool(told["paused"])}, name=folder.name)


def of_status(status: Mapping[str, Any], *, name: str) -> Shown:
    """What may be shown of a server by its own status (`/status.json`).

    Edge cases: a status is what another machine says: one that is no status of a pool is a `DataError`.
    """
    try:
        pool = {key: _KINDS[key](value) for key, value in part(status, POOL_KEYS).items()}
        epsilon, called = pool["epsilon"], pool["name"]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{name!r} did not give the status of a pool ({error!r}): name another address") from error
    return Shown(
        kind="pool",
        name=name,
        data=called,
        unit="number" if pool.get("privacy") == "feature" else "contribution",
        over=False,
        simulated=False,
        public=False,
        epsilon=epsilon,
        delta=pool.get("delta"),
        pool=pool,
    )


def _number(value: Any) -> float | int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value[:_LONGEST]


def _numbers(value: Any) -> dict[str, float | int | None]:
    return {_text(name): _number(inner) for name, inner in list(value.items())[:_MOST]}


def _facts(value: Any) -> dict[str, Any]:
    return {
        _text(name): _text(inner) if isinstance(inner, str) else _number(inner)
        for name, inner in list(value.items())[:_MOST]
        if not isinstance(inner, dict)
    }


def _listed(value: Any) -> list[dict[str, Any]]:
    return [_facts(one) for one in list(value)[:_MOST]]


_LONGEST, _MOST = 20_000, 200
_KINDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "fingerprint", "privacy", "promise", "statement"), _text),
    **dict.fromkeys(("accepted", "repeated", "instances", "size", "epsilon", "delta"), _number),
    **dict.fromkeys(("turned_away", "spread"), _numbers),
    **dict.fromkeys(("weights", "adversaries"), _listed),
    "paused": bool,
}
