"""A plan with correlated noise (DP-FTRL): clients take turns, nothing is sampled, the run is one event."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property

from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import NoOpDpEvent

from incrowd import _validate
from incrowd._html import html_table
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import (
    CorrelatedNoise,
    NoiseState,
    Participation,
    StrategyMatrix,
    optimal_banded,
    optimal_blt,
)
from incrowd.privacy.plan.plan import PrivacyWarning
from incrowd.privacy.plan.promise import Carry, NoiseBy, NoisedSum, Noises, Pending, RoundPlan
from incrowd.privacy.plan.sampling import Cyclic
from incrowd.privacy.statement import CENTRAL_TRUST, Statement, stated


@dataclass(frozen=True, kw_only=True)
class CorrelatedPlan:
    """Rounds whose noise takes back a part of the earlier rounds' noise, over clients that take turns in groups.

    The strategy is banded with as many bands as there are groups, or a sum of `buffers` decaying exponentials, where
    that is asked for; both are optimal for running sums (see `incrowd.privacy.mechanism.correlated`).

    Guarantee: all rounds together cost `price`, which is at most the budget. The first round is charged for the whole
    run; the ledger counts the others at no cost.

    Edge cases: clips that change from round to round are refused, for the noise of a run belongs to one bound.
    """

    clients: int
    rounds: int
    groups: int
    budget: Budget
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    buffers: int | None = None
    relation: Relation = field(default=Relation.REPLACE_SPECIAL, init=False)
    noise_by: NoiseBy = field(default="server", init=False)

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds)
        self._bound()
        self._sampler()
        caution = self.budget.warn_for(self.clients)
        if caution is not None:
            warnings.warn(caution, PrivacyWarning, stacklevel=2)

    @cached_property
    def noise(self) -> CorrelatedNoise:
        """The calibrated noise of the whole run."""
        return CorrelatedNoise(
            noise_multiplier=1.0,
            clip_norm=self._bound(),
            contributions_bound=self.clients,
            participation=self._participation(),
            strategy=self._strategy(),
        ).calibrate(self.budget)

    @cached_property
    def price(self) -> Price:
        """See `Promise.price`."""
        return price(self.noise.event(), delta=self.budget.delta, relation=self.relation)

    @property
    def noise_multiplier(self) -> float:
        """See `Promise.noise_multiplier`: the multiplier of the fresh noise, relative to the run's sensitivity."""
        return self.noise.noise_multiplier

    @property
    def runs(self) -> list[RepeatedEvent]:
        """See `Promise.runs`."""
        return [(self.round(0).event, 1), *([(NoOpDpEvent(), self.rounds - 1)] if self.rounds > 1 else [])]

    def round(self, number: int) -> RoundPlan:
        """See `Promise.round`."""
        if not 0 <= number < self.rounds:
            raise ConfigError(field="round", value=number, remedy=f"give a round from 0 to {self.rounds - 1}")
        multiplier = self.noise_multiplier
        event = GaussianDpEvent(multiplier) if number == 0 else NoOpDpEvent()
        return RoundPlan(sampler=self._sampler(), noise_multiplier=multiplier, event=event)

    def start(self, size: int) -> Carry:
        """See `Promise.start`."""
        return Carry(clip=self.clip, noise=self.noise.init(size))

    def noises(self, number: int, clip: Clip) -> Noises:
        """See `Promise.noises`."""
        return Noises(server=self.noise)

    def add_noise(self, pending: Pending, *, memory: NoiseState | None, receipt: Receipt) -> NoisedSum:
        """See `Promise.add_noise`."""
        if memory is None or memory.round != pending.round:
            remedy = "hand every round the carry of the release before it"
            raise ConfigError(field="carry", value=None if memory is None else memory.round, remedy=remedy)
        total, after = self.noise.add(pending.total, state=memory, receipt=receipt, at=("noise", pending.round))
        _, std = self.noise.scale(memory.size)
        return NoisedSum(total=total, std=std, noise=after)

    def statement(self, ledger: Ledger, *, own: int, caveats: tuple[str, ...] = ()) -> Statement:
        """See `Promise.statement`."""
        caution = self.budget.warn_for(self.clients)
        return stated(
            ledger,
            unit="client",
            own=own,
            trust=CENTRAL_TRUST,
            sampler=f"none: {self.clients} clients take turns in {self.groups} groups over {self.rounds} rounds",
            caveats=caveats if caution is None else (*caveats, caution),
        )

    def _repr_html_(self) -> str:
        """A notebook's view: the promise and its price, all of it public."""
        return html_table(
            {
                "clients": self.clients,
                "rounds": self.rounds,
                "groups": self.groups,
                "noise": f"correlated, {'banded' if self.buffers is None else f'{self.buffers} buffers'}",
                "noise multiplier": f"{self.noise_multiplier:.6g}",
                "epsilon": f"{self.price.epsilon:.6g}, of {self.budget.epsilon:g}, all of it in the first round",
                "delta": f"{self.budget.delta:g}",
                "accountant": self.price.accountant,
            }
        )

    def _bound(self) -> float:
        if isinstance(self.clip, MedianClip | QuantileClip):
            remedy = "correlated noise belongs to one bound: use a fixed or normalised clip"
            raise ConfigError(field="clip", value=type(self.clip).__name__, remedy=remedy)
        return self.clip.clip_norm

    def _sampler(self) -> Cyclic:
        return Cyclic(clients=self.clients, groups=self.groups)

    def _participation(self) -> Participation:
        return Participation(rounds=self.rounds, min_separation=self.groups)

    def _strategy(self) -> StrategyMatrix:
        participation = self._participation()
        if self.buffers is None:
            return optimal_banded(participation, bands=min(self.groups, self.rounds))
        return optimal_blt(participation, buffers=self.buffers)
