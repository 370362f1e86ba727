"""A round of a silo that is paid for: the only way to noise, and so the only way out of the silo."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from incrowd._random import Floats, Randomness, Stream
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.silo_plan import SiloPlan


@dataclass
class _Paid:
    """What was found in a ledger's first entries."""

    entries: int = 0
    rounds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """Where the rounds of one run are charged, and where their noise and batches are drawn from.

    Several runs can share a ledger under different labels. Silos that are simulated on one machine from one seed differ
    by their `place`.

    Guarantee: what was paid is read from the ledger, each entry once.
    """

    ledger: Ledger
    randomness: Randomness
    label: str = "run"
    place: int = 0
    _known: _Paid = field(default_factory=_Paid, init=False, repr=False)

    def paid(self) -> Mapping[int, float]:
        """The rounds of the run that were charged so far, each with its noise multiplier."""
        for entry in self.ledger.entries(start=self._known.entries):
            note = entry.content()["note"] if entry.kind == "charge" else {}
            if note.get("run") == self.label:
                self._known.rounds[note["round"]] = note["noise_multiplier"]
            self._known.entries = entry.position + 1
        return MappingProxyType(self._known.rounds)

    def stream(self, purpose: str, number: int) -> Stream:
        """The stream of a round for a purpose."""
        return self.randomness.stream(purpose, number, self.place)


class Permit:
    """Noise for the steps of one round, and for its counts, and for nothing else.

    Guarantee: where there is a permit, the event of its round is on the ledger's disk; noise for a step can be drawn as
    often as the event has steps, noise for the counts once, both of the multiplier that was charged. Under seeded
    randomness a round that a crash cut off after its charge can be repeated, for it repeats the very same noise and
    batches; under the operating system's it cannot.

    Edge cases: a charge that the budget does not allow raises `BudgetExceeded`, and nothing was written or drawn.
    """

    def __init__(self, plan: SiloPlan, account: Account, *, number: int, multiplier: float) -> None:
        paid = account.paid()
        if number not in paid:
            account.ledger.charge(
                plan.event(multiplier),
                note={"run": account.label, "round": number, "noise_multiplier": multiplier},
            )
        elif not account.randomness.simulated or paid[number] != multiplier:
            remedy = "it is paid for already, and fresh noise would cost again: go on with the next round"
            raise ConfigError(field="round", value=number, remedy=remedy)
        self.training = plan.training(multiplier)
        self._plan = plan
        self._account = account
        self._number = number
        self._steps_left = self.training.steps
        self._counts_left = int(plan.count_std is not None)
        self._stream = account.stream("noise", number)

    @property
    def batches(self) -> Stream:
        """Where the batches of the round's steps are drawn from."""
        return self._account.stream("batches", self._number)

    def noise(self, total: Floats) -> Floats:
        """Hide a step: its clipped sum, with noise on it."""
        if self._steps_left == 0:
            raise BudgetExceeded(f"the {self.training.steps} steps that were paid for are taken: charge another round")
        self._steps_left -= 1
        return self.training.noised(total, stream=self._stream)

    def counts(self, records: int, right: int) -> tuple[float, float]:
        """How many records there are, and how many of them the model gets right: both with noise."""
        noise = self._plan.count_noise
        if self._counts_left == 0 or noise is None:
            raise BudgetExceeded("counts are released once a round, and only where the plan says so (count_std)")
        self._counts_left -= 1
        stream = self._account.stream("counts", self._number)
        exact = np.array([records, right], dtype=np.float64)
        noised = noise.add(exact, stream=stream, contributions_bound=self._plan.most_records)
        return float(noised[0]), float(noised[1])
