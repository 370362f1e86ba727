"""What a run needs of its plan, whatever kind of noise the plan is made for."""

from dataclasses import dataclass, field
from typing import Protocol

from dp_accounting import DpEvent

from incrowd._random import Floats, Randomness
from incrowd.privacy.account.accounting import Budget, Price, Relation
from incrowd.privacy.account.events import Run
from incrowd.privacy.mechanism.clipping import Clip, MedianClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.plan.sampling import Sampler
from incrowd.privacy.statement import Statement


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What the plan says about one round."""

    sampler: Sampler
    noise_multiplier: float
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class Carry:
    """What one round hands to the next in public: its clip. What correlated noise remembers goes another way."""

    clip: Clip | MedianClip


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A sum that is paid for and waits for its noise. Private."""

    round: int
    total: Floats = field(repr=False)
    clip: Clip
    contributions: int


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """A noised sum, the standard deviation of its noise, and what correlated noise has to remember."""

    total: Floats
    std: float
    noise: NoiseState | None = field(default=None, repr=False)


class Promise(Protocol):
    """A plan: calibrated, frozen, and the only one who states probabilities, bounds, noise and rounds."""

    @property
    def budget(self) -> Budget:
        """What the plan may cost."""
        ...

    @property
    def price(self) -> Price:
        """What the plan does cost; never more than the budget."""
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
    def runs(self) -> list[Run]:
        """The events of all rounds, in order, as a ledger reserves them."""
        ...

    def round(self, number: int) -> RoundPlan:
        """What the plan says about one round, counted from 0."""
        ...

    def start(self, size: int) -> Carry:
        """What the first round of sums of so many numbers is handed."""
        ...

    def noise_state(self, size: int) -> NoiseState | None:
        """What correlated noise over sums of so many numbers remembers before the first round; of other noise None."""
        ...

    def hide(self, pending: Pending, *, noise: NoiseState | None, randomness: Randomness) -> Hidden:
        """Add the round's noise to its sum."""
        ...

    def statement(self, *, simulated: bool) -> Statement:
        """What the finished run promises; `simulated` when its randomness was seeded."""
        ...
