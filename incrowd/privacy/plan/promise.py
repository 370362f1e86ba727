"""What a run needs of its plan, whatever kind of noise the plan is made for."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from dp_accounting import DpEvent

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, Price, Relation
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.receipt import Draws, Receipt
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipping import Clip, MedianClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise, NoiseState
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.noise import GaussianNoise
from incrowd.privacy.plan.sampling import Sampler
from incrowd.privacy.statement import Statement

Unit = Literal["client", "record"]
"""Who is protected: a client with all its examples, or one record of a silo."""

NoiseBy = Literal["server", "party"]
"""Where noise is added: by the server, on the sum; or by each party, on what it sends."""


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What the plan says about one round."""

    sampler: Sampler
    noise_multiplier: float
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class Noises:
    """The noises of one round: what each party adds to its contribution, the server to the sum, and to the clip's bits.

    A round has a party's noise or the server's, not both.
    """

    party: GaussianNoise | None = None
    server: GaussianNoise | CorrelatedNoise | None = None
    bits: GaussianNoise | None = None

    def paid(self, *, clients: int) -> Draws:
        """What the charge of the round pays for, with so many clients."""
        draws = ((self.party, clients), (self.server, 1), (self.bits, 1))
        return tuple((noise, times) for noise, times in draws if noise is not None)

    def check(self, size: int, *, clients: int) -> None:
        """Refuse, before it is paid for, what fits no grid for sums of so many numbers of so many clients."""
        if isinstance(self.server, CorrelatedNoise):
            self.server.scale(size)
        elif self.server is not None:
            self.server.step(size, contributions_bound=clients)
        if self.party is not None:
            step = self.party.step(size, contributions_bound=1)
            largest = (grid.REACH * self.party.noise_multiplier + 1) * 1.01 * self.party.clip_norm / step
            if clients * largest >= 2.0**63:
                remedy = "the noise of so many clients does not fit 64 bits: choose a smaller noise multiplier"
                raise ConfigError(field="clients", value=clients, remedy=remedy)
        if self.bits is not None:
            self.bits.step(1, contributions_bound=clients)


@dataclass(frozen=True, kw_only=True)
class Carry:
    """What one round hands to the next: its clip, which is public, and the memory of correlated noise, which is not."""

    clip: Clip | MedianClip
    noise: NoiseState | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A sum that is paid for and waits for the server's noise. Private."""

    round: int
    total: Whole = field(repr=False)
    clip: Clip


@dataclass(frozen=True, kw_only=True)
class NoisedSum:
    """A noised sum, its noise's standard deviation, and what correlated noise has to remember, which is private."""

    total: Whole
    std: float
    noise: NoiseState | None = field(default=None, repr=False)


class Promise(Protocol):
    """A plan: calibrated, frozen, and the only one who states probabilities, bounds, noise, who adds it and rounds."""

    @property
    def budget(self) -> Budget:
        """What the plan may cost."""
        ...

    @property
    def price(self) -> Price:
        """What the plan does cost; never more than the budget."""
        ...

    @property
    def noise_by(self) -> NoiseBy:
        """Where noise is added."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds are planned."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """The smallest noise multiplier of any round."""
        ...

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of the promise."""
        ...

    @property
    def runs(self) -> list[RepeatedEvent]:
        """The events of all rounds, in order, as a ledger reserves them."""
        ...

    def round(self, number: int) -> RoundPlan:
        """What the plan says about one round, counted from 0."""
        ...

    def start(self, size: int) -> Carry:
        """What the first round of sums of so many numbers is handed."""
        ...

    def noises(self, number: int, clip: Clip) -> Noises:
        """The noises of a round in which this clip was used."""
        ...

    def add_noise(self, pending: Pending, *, memory: NoiseState | None, receipt: Receipt) -> NoisedSum:
        """What leaves the server: where the noise is the server's, the sum with it on."""
        ...

    def statement(self, ledger: Ledger, *, own: int, caveats: tuple[str, ...] = ()) -> Statement:
        """What all that was charged to a ledger promises; so many of the charges are for rounds of this plan."""
        ...
