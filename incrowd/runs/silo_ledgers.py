"""The ledgers that a run of silos is charged to: each silo's own, and the server's where silos are protected, too."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incrowd.errors import BudgetExceeded, DataError, LedgerMismatch
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.silo_plan import RELATION, SiloPlan
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

        Edge cases: if one of those that are there is refused, the later ones are not begun; so where none has room.
        """
        if federation.elsewhere:
            return cls(silos=(), server=_server(federation, folder))
        config, plans = federation.config, federation.plans
        run_ledgers = [
            RunLedger.find(
                identity,
                own=own_place(folder, plan.name),
                budget=plan.budget,
                relation=RELATION,
                path=_in(config.privacy.ledger, plan.name),
                witness=_in(config.privacy.witness, plan.name, ".witness"),
            )
            for plan, identity in zip(plans, identities_of_silos(config, federation.held), strict=True)
        ]
        ledgers = cls(silos=tuple(run_ledgers), server=_server(federation, folder))
        with ExitStack() as stack:
            opened = [stack.enter_context(each) for each in ledgers.open(folder, [plan.name for plan in plans])]
            for plan, ledger in zip(plans, opened, strict=True):
                _check_budget(plan, ledger)
            _check_room(plans, opened)
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


def _check_budget(plan: SiloPlan, ledger: Ledger) -> None:
    if ledger.budget != plan.budget:
        raise LedgerMismatch(
            f"the ledger of {plan.name} was begun with budget = {ledger.budget}, not {plan.budget}: give its own as "
            "privacy.epsilon, which is what all runs on a silo's records may cost together"
        )


def _check_room(plans: Sequence[SiloPlan], ledgers: Sequence[Ledger]) -> None:
    """Some silo can pay for a round."""
    refusals = []
    for plan, ledger in zip(plans, ledgers, strict=True):
        try:
            ledger.check_room(plan.report_runs)
            spent = [*ledger.commitments(), *plan.report_runs]
            ledger.check_room([(plan.event(plan.noise_multiplier(0, spent=spent)), 1), *plan.report_runs])
        except BudgetExceeded as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _in(folder: str | None, name: str, ending: str = "") -> Path | None:
    return None if folder is None else Path(folder) / f"{name}.sqlite{ending}"
