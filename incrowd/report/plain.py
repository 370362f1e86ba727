"""What may be shown of a folder, as plain data: an allow-list, and nothing else.

It goes by `incrowd.runs.folder`, as what is exported does. Beyond that, what reads raw contributions is shown of
simulations of public data alone, and a ledger is shown without labels, notes, days and paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["clients", "silos", "search", "pool", "ledger"]

ShownFacts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What may be shown of one run, search, pool or ledger.

    `name` is the last part of its folder's name, which tells it apart on a page. `epsilon` and `delta` are what was
    spent by now, `budget` what may be; `promises` has what each party may claim, by its name (or "" of a run that has
    one promise). `rounds` are those that were written down; their `simulation` is there of simulations of public data
    only.

    Guarantee: whatever else a folder holds, only what is listed in `incrowd.runs.folder` gets in here, no path and
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
    result: ShownFacts = field(default_factory=dict)
    settings: Mapping[str, ShownFacts] = field(default_factory=dict)
    promises: Mapping[str, ShownFacts] = field(default_factory=dict)
    rounds: Sequence[ShownFacts] = ()
    schedule: Sequence[ShownFacts] = ()
    silos: Sequence[ShownFacts] = ()
    ledgers: Sequence[ShownFacts] = ()
    evaluations: Sequence[ShownFacts] = ()
    audit: ShownFacts | None = None
    search: ShownFacts | None = None
    pool: ShownFacts | None = None

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON data."""
        return asdict(self)
