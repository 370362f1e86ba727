"""What a charge pays for: the rounds of one plan from one ledger, and the noises of each round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import DpEvent

from incrowd._random import Randomness
from incrowd.errors import ConfigError, LedgerMismatch
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Draws, Receipt
from incrowd.privacy.mechanism.clipping import Clip, QuantileClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise, NoiseState
from incrowd.privacy.mechanism.grid import REACH, GaussianNoise, Whole, contribution_step
from incrowd.privacy.mechanism.shared import SharedNoise
from incrowd.privacy.plan.forms import check_ours, fingerprint, to_json
from incrowd.privacy.plan.plan import NoiseBy, Plan, Unit

Note = Mapping[str, str | int | float | bool | None]
"""Flat data that a charge notes of itself."""


class PaidRun:
    """The rounds of one plan, paid from one ledger under one label: reserve -> charge -> receipt -> noise.

    Guarantee: the plan is ours, with all of its parts, and under the ledger's neighbouring relation. Its whole price is
    reserved before its first round is charged. A receipt for noise comes when its event is on the ledger's disk.

    Edge cases: any other plan is refused, and so is one for another unit. Under seeded randomness a round that a crash
    cut off after its charge may be repeated, because it repeats the very same noise; under the operating system's it
    may not.
    """

    takes: ClassVar[frozenset[tuple[Unit, NoiseBy]]]
    """The plans that it pays for, by the unit of protection and the actor that adds noise."""

    def __init__(self, plan: Plan, *, ledger: Ledger, randomness: Randomness, label: str) -> None:
        check_ours(plan)
        if (plan.unit, plan.noise_by) not in self.takes:
            other = "RecordRun" if (plan.unit, plan.noise_by) == ("record", "party") else "PrivateRun"
            remedy = f"a {type(self).__name__} does not pay for its rounds: give the plan to a {other}"
            raise ConfigError(field="unit", value=plan.unit, remedy=remedy)
        if ledger.relation is not plan.relation:
            raise LedgerMismatch(
                f"the plan's neighbouring relation is {plan.relation.name}, the ledger's is {ledger.relation.name}: "
                "open a ledger of the plan's relation"
            )
        self.plan = plan
        self.ledger = ledger
        self.randomness = randomness
        self.label = label
        self._third_party: dict[str, None] = {}
        self.fingerprint = fingerprint(to_json(plan))
        self._looked_at = 0  # entries of the ledger

    def name_third_party(self, *parts: str) -> None:
        """Have statements name this code from the next charge on, besides the plan's; no name is removed."""
        self._third_party |= dict.fromkeys(part for part in parts if part)

    def reserve(self) -> None:
        """Reserve the price of the whole plan. Done again it changes nothing.

        Edge cases: a ledger without room for it: `BudgetExceeded`, and nothing is reserved.
        """
        self.ledger.reserve(self.plan.runs, label=self.label)

    def pay(self, event: DpEvent, draws: Draws, *, key: str, reservation: str, note: Note, people: int = 1) -> Receipt:
        """Charge an event of the plan; the receipt pays for these draws, and its charge notes whom they protect."""
        its: dict[str, str] = {"unit": self.plan.unit, "noise_by": self.plan.noise_by}
        if self.plan.noise_by == "parties":
            parties, colluders = self.plan.config.sharing
            its["against"] = f"{colluders} of {parties}"
        if parts := [*self._third_party, *self.plan.config.third_party]:
            its["third_party"] = ", ".join(parts)
        return self.ledger.charge(
            event,
            pays_for=draws,
            randomness=self.randomness,
            key=f"{self.label}: {key}",
            reservation=reservation,
            people=people,
            note={**its, **note},
        )

    def check_plan(self) -> None:
        """All rounds before were charged by this very plan: others can have the same events, and noise for less."""
        for entry in self.ledger.entries(start=self._looked_at):
            content = entry.content()
            noted = content.get("note", {}).get("plan", self.fingerprint)
            if content.get("reservation") == self.label and noted != self.fingerprint:
                remedy = "rounds of another plan are charged under it: run this one under a label of its own"
                raise ConfigError(field="label", value=self.label, remedy=remedy)
            self._looked_at = entry.position + 1


@dataclass(frozen=True, kw_only=True)
class RoundNoise:
    """The noise of one round in which this clip was used: on the sum or on each client's part of it, and on the bits of
    an adaptive clip. So many `listed` parties add a share each of `shared` noise.
    """

    round: int
    clip: Clip
    noise: GaussianNoise | CorrelatedNoise
    clients: int
    local: bool = False
    bits: GaussianNoise | None = None
    shared: SharedNoise | None = None
    listed: int = 0

    @classmethod
    def of(cls, plan: Plan, number: int, clip: Clip, *, listed: int = 0) -> "RoundNoise":
        """The noise that a plan states. A quantile's bits take their part of it."""
        return cls(
            round=number,
            clip=clip,
            noise=plan.noise(number, clip),
            clients=plan.config.members,
            local=plan.noise_by == "party",
            # A bit counts as -1/2 or +1/2: one client changes the sum by at most 1/2 (Andrew et al. 2021).
            bits=GaussianNoise(noise_multiplier=2 * clip.bit_noise, clip_norm=0.5)
            if isinstance(clip, QuantileClip)
            else None,
            shared=plan.shared(number, clip),
            listed=listed,
        )

    @property
    def draws(self) -> Draws:
        """The draws that the charge of the round pays for."""
        if self.shared is not None:
            return ((self.shared.share(self.listed), self.listed),)
        bits = () if self.bits is None else ((self.bits, 1),)
        return ((self.noise, self.clients if self.local else 1), *bits)

    def check(self, size: int) -> None:
        """Refuse noise that fits no grid for sums of so many numbers, before it is paid for."""
        if self.shared is not None and isinstance(self.noise, GaussianNoise):
            self.shared.share(self.listed)
            fine = self.noise.step(size, contributions_bound=self.clients)
            self.shared.fine(min(fine, contribution_step(self.clip.clip_norm, contributions_bound=self.clients)))
        elif isinstance(self.noise, CorrelatedNoise):
            self.noise.scale(size)
        else:
            step = self.noise.step(size, contributions_bound=1 if self.local else self.clients)
            largest = (REACH * self.noise.noise_multiplier + 1) * 1.01 * self.noise.clip_norm / step
            if self.local and self.clients * largest >= 2.0**63:
                remedy = "the noise of so many clients does not fit 64 bits: choose a smaller noise multiplier"
                raise ConfigError(field="clients", value=self.clients, remedy=remedy)
        if self.bits is not None:
            self.bits.step(1, contributions_bound=self.clients)

    def added(
        self, total: Whole, *, receipt: Receipt, memory: NoiseState | None
    ) -> tuple[Whole, float, NoiseState | None]:
        """The sum that leaves the server, its noise's deviation, and what correlated noise has to remember.

        Local noise is in the sum already, that of as many clients as should answer, and so are shares of noise.
        """
        if self.shared is not None:
            return total, self.shared.released_std(self.listed), None
        at = "noise", self.round
        if isinstance(self.noise, CorrelatedNoise):
            if memory is None or memory.round != self.round:
                remedy = "hand every round the carry of the release before it"
                raise ConfigError(field="carry", value=None if memory is None else memory.round, remedy=remedy)
            noised, after = self.noise.add(total, state=memory, receipt=receipt, at=at)
            return noised, self.noise.scale(memory.size)[1], after
        std = self.noise.noise_multiplier * self.noise.clip_norm
        if self.local:
            return total, std * math.sqrt(self.clients), None
        return self.noise.add(total, receipt=receipt, at=at, contributions_bound=self.clients), std, None
