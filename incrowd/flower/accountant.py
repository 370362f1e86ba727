"""A ledger behind Flower's `PrivacyAccountant` protocol, for Flower's own strategies with differential privacy.

Flower asks an accountant before a round and informs it after; its own keeps the spent budget in memory alone.
"""

from dataclasses import dataclass, field
from typing import NoReturn

from dp_accounting import DpEvent, GaussianDpEvent
from dp_accounting.dp_event import SelfComposedDpEvent
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from incrowd import _validate
from incrowd.errors import ConfigError, LedgerMismatch
from incrowd.privacy.account.accounting import Price, Relation, delta_at, price
from incrowd.privacy.account.events import RepeatedEvent, compose, event_from_json
from incrowd.privacy.ledger.ledger import Entry, Ledger

NOISE = "flwr: NumPy's global generator"
"""The ledger's note on the source of the noise of Flower's strategies."""

SENSITIVITY = {Relation.REPLACE_SPECIAL: 1, Relation.REPLACE_ONE: 2}
"""The distance of two neighbouring sums over a cohort of a fixed size, in clip bounds."""


@dataclass(frozen=True)
class FlowerNoise:
    """The randomness of Flower's noise, which is seeded and global. Nothing is drawn here."""

    source: str = field(default=NOISE, init=False)
    simulated: bool = field(default=True, init=False)

    def stream(self, purpose: str, *indices: int) -> NoReturn:
        """Refused: the noise is Flower's."""
        raise ConfigError(field="randomness", value=purpose, remedy="Flower draws this noise itself")


class LedgerAccountant:
    """An `accountant` for Flower's `DifferentialPrivacyServerSideFixedClipping`, with a ledger behind it.

    `clients` is the public number of clients. The ledger's relation sets the price of a round: replacing a client moves
    the sum by two clip norms, leaving its place empty by one. No round is amplified by sampling: Flower draws its
    cohorts from the connected nodes, with a generator that any program may seed.

    Guarantee: `compose` writes to the ledger's disk before it returns, and Flower returns the round's arrays only then;
    a restarted program goes on from the spent budget. All charges and reservations of the ledger count. If a round
    exceeds the budget, the strategy learns so before it asks a node; `compose` raises `BudgetExceeded` and writes
    nothing.

    Edge cases: it refuses a ledger of the relation add or remove (`LedgerMismatch`): in a cohort of a fixed size
    another client fills the place. The ledger and its statements note that this noise comes from a seed.
    """

    def __init__(self, ledger: Ledger, *, clients: int) -> None:
        _validate.count(clients=clients)
        if ledger.relation not in SENSITIVITY:
            known = " or ".join(relation.name for relation in SENSITIVITY)
            raise LedgerMismatch(
                f"the ledger's neighbouring relation is {ledger.relation.name}, and Flower's cohorts have a fixed "
                f"size: open a ledger with the relation {known}"
            )
        self.ledger = ledger
        self._config = PrivacyConfig(
            target_delta=ledger.budget.delta,
            population_size=clients,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,  # all that Flower knows without amplification
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
            max_epsilon=ledger.budget.epsilon,
        )

    @property
    def config(self) -> PrivacyConfig:
        """The ledger's terms for Flower, which cannot state the relation; the ledger's own counts."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases the ledger has been charged for, by this program and all others."""
        return sum(int(entry.content()["note"].get("releases", 1)) for entry in self._charges())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Charge a release, or several that are the same."""
        self.ledger.charge(
            self._event(event, count),
            randomness=FlowerNoise(),
            note={
                "unit": "client",
                "releases": count,
                "cohort": event.sample_size,
                "clients": event.population_size,
                "noise_by": "server",
            },
        )

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether these releases would exceed the budget, or a smaller epsilon."""
        limits = [self.ledger.budget.epsilon, *([] if max_epsilon is None else [max_epsilon])]
        runs = [*self.ledger.commitments(), (self._event(event, count), 1)]
        return self._price(runs, self.ledger.budget.delta).epsilon > min(limits)

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of all charges, at a delta."""
        return self.get_privacy_spent(delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """The delta of all charges, at an epsilon."""
        return delta_at(compose(self._spent()), epsilon=epsilon, relation=self.ledger.relation)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The epsilon of all charges, at the budget's delta or another."""
        delta = self.ledger.budget.delta if delta is None else delta
        found = self._price(self._spent(), delta)
        return PrivacySpent(found.epsilon, delta, self.num_releases, found.accountant)

    def state_dict(self) -> dict[str, object]:
        """The ledger's identity and length; the ledger keeps the charges."""
        mark = self.ledger.mark
        return {"ledger": self.ledger.id, "entries": mark.entries, "head": mark.head}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Check that the ledger is the one of this state and has lost nothing since; it loads nothing.

        Edge cases: another ledger is a `LedgerMismatch`, a shortened one `LedgerRolledBack`.
        """
        if state.get("ledger") != self.ledger.id:
            raise LedgerMismatch(f"the state is of the ledger {state.get('ledger')!r}: open that one")
        self.ledger.verify(head=str(state.get("head")))

    def _event(self, event: GaussianPrivacyEvent, count: int) -> DpEvent:
        """Noise over what one client can move, however often."""
        _validate.count(count=count)
        if event.population_size != self._config.population_size:
            remedy = f"the accountant was made for {self._config.population_size} clients"
            raise ConfigError(field="population_size", value=event.population_size, remedy=remedy)
        once = GaussianDpEvent(event.noise_multiplier / SENSITIVITY[self.ledger.relation])
        return once if count == 1 else SelfComposedDpEvent(once, count)

    def _spent(self) -> list[RepeatedEvent]:
        return [(event_from_json(entry.content()["event"]), 1) for entry in self._charges()]

    def _charges(self) -> list[Entry]:
        return [entry for entry in self.ledger.entries() if entry.kind == "charge"]

    def _price(self, runs: list[RepeatedEvent], delta: float) -> Price:
        return price(compose(runs), delta=delta, relation=self.ledger.relation)
