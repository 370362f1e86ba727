"""What a search is charged to: the ledger of its data, for each run by itself or for a private selection as a whole."""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd._private import make_ours
from incrowd.errors import ConfigError
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.home import Home, is_begun
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.build import randomness
from incrowd.runs.folder import LEDGER
from incrowd.runs.identity import identity_of
from incrowd.runs.run_ledger import RunLedger
from incrowd.runs.search import Search
from incrowd.runs.search_cost import Cost

SEARCH, ATTEMPTS = "search.json", "attempts"


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchLedger:
    """The ledger of a search, known by the search's file in its folder.

    Guarantee: whatever the runs release is charged once to the ledger of the data. Runs that are all shown are charged
    there one by one. A private selection is one charge; what keeps its attempts from being trained twice, in copies of
    their folders, is a ledger each, in the user's state folder where the data are private. Those are gone when the
    search is over, and an attempt cannot go on without the search.
    """

    search: Search
    cost: Cost
    folder: Path
    _own: list[RunLedger] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def identity(self) -> DataIdentity:
        """The data of the search.

        Edge cases: private data that differ from run to run are refused; so is a rehearsal on private data.
        """
        configs = {candidate.config.data.model_dump_json(): candidate.config for candidate in self.search.candidates}
        first, *others = map(identity_of, configs.values())
        private = [each for each in (first, *others) if not each.public]
        if private and self.search.select == "public":
            remedy = 'the data are private: leave select, or declare them public with "data.public = true"'
            raise ConfigError(field="select", value="public", remedy=remedy)
        if private and any(each != first for each in others):
            remedy = "on private data all runs of a search need the same data and clients: search them one by one"
            raise ConfigError(field="data", value=[each.division for each in (first, *others)], remedy=remedy)
        return first

    @property
    def secret(self) -> str | None:
        """The label without which an attempt cannot be opened; None where every run pays for itself."""
        return self._own[0].label if self.search.select == "private" else None

    def check(self) -> None:
        """The data's ledger has room for the search (`BudgetExceeded`); nothing is written that is not outside."""
        public = self.identity.public
        if not self.cost.events:
            return
        self.cost.budget(self.search.budget)
        own = public and self.search.candidates[0].config.privacy.ledger is None
        if self._stored() is None and not own:
            search_ledger = self._find()
            with search_ledger.open(self.folder / LEDGER) as ledger:
                ledger.check_room([run for runs in self._promises(search_ledger).values() for run in runs])

    def begin(self) -> None:
        """Reserve the whole search, under the label that is kept with it. Only for who holds the search's lock."""
        if not (self.folder / SEARCH).exists():
            self._write(None)
        if not self.cost.events:
            return
        own = self._stored()
        if own is None:
            own = self._find()
            self._write(own)
        else:
            own.check_same(self.identity)
        self._own[:] = [own]
        with own.open(self.folder / LEDGER) as ledger:
            ledger.reserve_all(self._promises(own))

    def open(self) -> Ledger:
        """The ledger, for writing; never open while a process is forked."""
        return self._own[0].open(self.folder / LEDGER)

    def charged(self, number: int | None = None) -> bool:
        """Whether anything was charged: for a run, or for the selection."""
        if not self._own:
            return False
        own = self._own[0]
        label = own.label if number is None else own.part(number).label
        with own.open(self.folder / LEDGER) as ledger:
            return ledger.reservation(label).charged > 0

    def charges(self, ledger: Ledger) -> int:
        """How many charges of the search the ledger holds."""
        return sum(ledger.reservation(label).charged for label in self._promises(self._own[0]))

    def charge(self) -> None:
        """Pay for the selection."""
        if not self.charged():
            (event, _), *_ = self.cost.events
            source = randomness(self.search.candidates[0].config)
            with self.open() as ledger:
                ledger.charge(event, reservation=self._own[0].label, note={"run": 0}, randomness=source)

    def of_run(self, number: int, plan: Plan, folder: Path) -> RunLedger | None:
        """What a run is charged to; None where it has a ledger of its own, as in a rehearsal."""
        if not self._own:
            return None
        own = self._own[0]
        if self.search.select == "all":
            part = own.part(number)
            return replace(part, path=part.path or self.folder / LEDGER)
        public = self.identity.public
        path = folder / LEDGER if public else self._attempts(own.label) / f"{folder.name}.sqlite"
        _files.folder(folder) if public else make_ours(path.parent)
        budget = None if is_begun(path) else plan.budget
        with Ledger.open(path, budget=budget, relation=plan.relation, data_identity=self.identity) as ledger:
            place = None if public else path
            return RunLedger(identity=self.identity, id=ledger.id, label="run", path=place, search=own.label)

    def clean(self) -> None:
        """Remove what kept attempts from being trained twice."""
        own = self._stored()
        if own is not None and self._attempts(own.label).exists():
            _files.remove(self._attempts(own.label))
            _files.undate(self._attempts(own.label).parent)

    def _promises(self, own: RunLedger) -> dict[str, list[RepeatedEvent]]:
        """What is reserved, by label."""
        if self.search.select == "private":
            return {own.label: self.cost.events}
        return {own.part(number).label: plan.runs for number, plan in enumerate(self.cost.plans)}

    def _find(self) -> RunLedger:
        wanted = self.search.candidates[0].config.privacy
        return RunLedger.find(
            self.identity,
            own=self.folder / LEDGER,
            budget=self.cost.budget(self.search.budget),
            relation=self.cost.relation,
            path=None if wanted.ledger is None else Path(wanted.ledger),
            witness=None if wanted.witness is None else Path(wanted.witness),
        )

    def _attempts(self, label: str) -> Path:
        return Home.of_user().folder / ATTEMPTS / label

    def _stored(self) -> RunLedger | None:
        path = self.folder / SEARCH
        stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return None if stored.get("ledger") is None else RunLedger.from_json(stored["ledger"])

    def _write(self, own: RunLedger | None) -> None:
        content = {"search": self.search.to_json(), "ledger": None if own is None else own.to_json()}
        _files.write(self.folder / SEARCH, json.dumps(content, indent=1))
