"""What may be shown of a folder, as plain data: an allow-list, and nothing else.

It goes by `incrowd.runs.contents`, as what is exported does. Beyond that, what reads raw contributions is shown of
simulations of public data alone, and a ledger is shown without labels, notes, days and paths.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from incrowd.errors import ConfigError

Kind = Literal["clients", "silos", "search", "pool", "ledger"]

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What may be shown of one run, search, pool or ledger.

    `name` is the last part of its folder's name, which tells it apart on a page. `epsilon` and `delta` are what was
    spent by now, `budget` what may be; `promises` has what each party may claim, by its name (or "" of a run that has
    one promise). `rounds` are those that were written down; their `simulation` is there of simulations of public data
    only.

    Guarantee: whatever else a folder holds, only what is listed in `incrowd.runs.contents` gets in here, no path and
    nothing of an attempt that a private search kept back.
    """

    kind: Kind
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
        """The same as plain JSON data."""
        return asdict(self)


def read(folder: Path, *, before: Shown | None = None) -> Shown:
    """What may be shown of the run, search, pool or ledger in a folder (or of a ledger's file), over or not.

    With what was shown of the same folder `before`, only the rounds since then are read, and no ledger is priced before
    the run is over: for who looks every second.

    Guarantee: nothing in the folder is changed, and who writes there is not kept from it.

    Edge cases: nothing of the kind there, or an attempt of a private search: `ConfigError`; files that were damaged:
    `DataError`.
    """
    from incrowd.report import ledger_shown, pool_shown, run_shown, search_shown

    folder = folder.resolve()
    if (folder / "search.json").is_file():
        return search_shown.search_in(folder)
    if (folder / "run.sqlite").is_file():
        return run_shown.run_in(folder, before=before)
    if (folder / "pool.sqlite").is_file():
        return pool_shown.pool_in(folder)
    if folder.is_file() or (folder / "ledger.sqlite").is_file():
        return ledger_shown.ledger_in(folder)
    remedy = "there is no run, search, pool or ledger: name the folder that incrowd train, sweep or serve wrote"
    raise ConfigError(field="folder", value=str(folder), remedy=remedy)


def read_all(folders: Sequence[Path]) -> list[Shown]:
    """What may be shown of each of several folders, under names that tell them apart.

    Edge cases: the same folder twice is a `ConfigError`, for it would look like two runs.
    """
    places = [folder.resolve() for folder in folders]
    twice = next((place for place, times in Counter(places).items() if times > 1), None)
    if twice is not None:
        raise ConfigError(field="folder", value=str(twice), remedy="it is named twice: leave one out")
    return told_apart([read(place) for place in places])


def told_apart(shown: Sequence[Shown]) -> list[Shown]:
    """The same, with a number after those names that several have."""
    times, seen = Counter(one.name for one in shown), Counter[str]()
    named = []
    for one in shown:
        seen[one.name] += 1
        named.append(replace(one, name=f"{one.name} ({seen[one.name]})") if times[one.name] > 1 else one)
    return named
