"""The ledgers that a run of silos is charged to: each silo's own, and the server's where silos are protected, too."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from incrowd.errors import DataError
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.folder import LEDGER, SILOS
from incrowd.runs.identity import identities_of_silos, identity_of
from incrowd.runs.run_ledger import RunLedger
from incrowd.runs.silo_build import SiloFederation


@dataclass(frozen=True, kw_only=True)
class SiloLedgers:
    """One for each silo, in order, and perhaps the server's; part of the run's settings."""

    silos: tuple[RunLedger, ...]
    server: RunLedger | None = None

    @classmethod
    def find(cls, federation: SiloFederation, folder: Path) -> "SiloLedgers":
        """The ledgers of the data, begun where there are none: see `RunLedger.find`. Of parties it is the server's.

        Edge cases: if one of those that are there is refused, the later ones are not begun; so where one has no room.
        """
        if federation.elsewhere:
            return cls(silos=(), server=_server(federation, folder))
        config, plans = federation.config, federation.plans
        names, room = federation.names, config.privacy.room
        run_ledgers = [
            RunLedger.find(
                identity,
                own=own_place(folder, name),
                budget=replace(plan.budget, epsilon=plan.budget.epsilon + room),
                relation=plan.relation,
                path=_in(config.privacy.ledger, name),
                witness=_in(config.privacy.witness, name, ".witness"),
            )
            for name, plan, identity in zip(names, plans, identities_of_silos(config, federation.held), strict=True)
        ]
        ledgers = cls(silos=tuple(run_ledgers), server=_server(federation, folder))
        with ExitStack() as stack:
            opened = [stack.enter_context(each) for each in ledgers.open(folder, names)]
            for place, ledger in enumerate(opened):
                federation.silo(place, ledger, label=run_ledgers[place].label).run.check_room()
        return ledgers

    def open(self, folder: Path, names: Sequence[str]) -> Sequence[Ledger]:
        """The ledgers of silos of these names, for writing."""
        return [each.open(own_place(folder, name)) for name, each in zip(names, self.silos, strict=True)]

    def check_same(self, federation: SiloFederation) -> None:
        """The data are those with which the run began (`DataError`)."""
        config, held = federation.config, federation.held
        identities = [] if federation.elsewhere else identities_of_silos(config, held)
        if len(identities) != len(self.silos):
            raise DataError(f"the run began with {len(self.silos)} silos: put the data back as they were")
        for each, identity in zip(self.silos, identities, strict=True):
            each.check_same(identity)
        if self.server is not None:
            self.server.check_same(identity_of(config, held))

    def to_json(self) -> dict[str, object]:
        """Plain JSON data."""
        server = None if self.server is None else self.server.to_json()
        return {"silos": [each.to_json() for each in self.silos], "server": server}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "SiloLedgers":
        """What `to_json` wrote."""
        server = None if content["server"] is None else RunLedger.from_json(content["server"])
        return cls(silos=tuple(map(RunLedger.from_json, content["silos"])), server=server)


def own_place(folder: Path, silo: str) -> Path:
    """Where a silo's ledger is that is in the run's folder."""
    return folder / SILOS / silo / LEDGER


def _server(federation: SiloFederation, folder: Path) -> RunLedger | None:
    plan, config = federation.clients, federation.config
    if plan is None:
        return None
    run_ledger = RunLedger.find(
        identity_of(config, federation.held),
        own=folder / LEDGER,
        budget=plan.budget,
        relation=plan.relation,
        path=_in(config.privacy.ledger, "server"),
        witness=_in(config.privacy.witness, "server", ".witness"),
    )
    with run_ledger.open(folder / LEDGER) as ledger:
        ledger.check_room(plan.runs)
    return run_ledger


def _in(folder: str | None, name: str, ending: str = "") -> Path | None:
    return None if folder is None else Path(folder) / f"{name}.sqlite{ending}"
