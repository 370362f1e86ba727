"""What a charge pays for: the rounds of one plan from one ledger, and the noises of each round.

A server pays for the sums of a `PrivateRun` (`incrowd.privacy.release`). A party pays from its own ledger, before a
batch or any noise is drawn: a `RecordRun` for a silo's steps, a `ShareRun` for a share of the noise of all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from dp_accounting import DpEvent

from incrowd._random import Floats, Randomness, Stream
from incrowd.errors import ConfigError, LedgerMismatch
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Draws, Receipt
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, QuantileClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise, NoiseState
from incrowd.privacy.mechanism.grid import REACH, GaussianNoise, Whole, contribution_step
from incrowd.privacy.mechanism.shared import NoiseShare, SharedNoise
from incrowd.privacy.plan.forms import check_ours, fingerprint, to_json
from incrowd.privacy.plan.plan import NoiseBy, Plan, Unit
from incrowd.privacy.statement import Statement

Note = Mapping[str, str | int | float | bool | None]
"""Flat data that a charge notes of itself."""


class Owner(Protocol):
    """The owner of a ledger: limits beside its budget, and notes with each charge."""

    def admit(self, ledger: Ledger, event: DpEvent) -> None:
        """Refuse what the ledger would pay for and its owner does not want."""

    def note(self, ledger: Ledger, plan: Plan, number: int) -> Note:
        """More that the charge of a round notes."""


class PaidRun:
    """The rounds of one plan, paid from one ledger under one label: reserve -> charge -> receipt -> noise.

    Guarantee: the plan is ours, with all of its parts, and under the ledger's neighbouring relation. Its whole price is
    reserved before its first round is charged. A receipt for noise comes when its event is on the ledger's disk, with
    the `owner`'s consent. Under seeded randomness a round that a crash cut off after its charge may be repeated: it
    repeats the very same noise. Under the operating system's it may not.
    """

    takes: ClassVar[frozenset[tuple[Unit, NoiseBy]]]
    """The plans that it pays for, by the unit of protection and the actor that adds noise."""

    def __init__(
        self, plan: Plan, *, ledger: Ledger, randomness: Randomness, label: str = "run", owner: Owner | None = None
    ) -> None:
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
        self.owner = owner
        self._third_party: dict[str, None] = {}
        self.fingerprint = fingerprint(to_json(plan))
        self._looked_at = 0  # entries of the ledger

    def name_third_party(self, *parts: str) -> None:
        """Have statements name this code from the next charge on, besides the plan's; no name is removed."""
        self._third_party |= dict.fromkeys(part for part in parts if part)

    def reserve(self) -> None:
        """Reserve the price of the whole plan. Done again it changes nothing."""
        self.ledger.reserve(self.plan.runs, label=self.label)

    def paid(self, number: int) -> bool:
        """Whether a round was charged."""
        return self.ledger.paid(f"{self.label}: round {number}")

    def pay(self, event: DpEvent, draws: Draws, *, number: int, note: Note, people: int = 1) -> Receipt:
        """Charge the event of a round; the receipt pays for these draws, and its charge notes whom they protect."""
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
            key=f"{self.label}: round {number}",
            reservation=self.label,
            people=people,
            note={**its, **note},
        )

    def owned(self, event: DpEvent, number: int) -> Note:
        """The owner's notes about a round, which the owner admits unless it was charged before."""
        if self.owner is None:
            return {}
        if not self.paid(number):
            self.owner.admit(self.ledger, event)
        return self.owner.note(self.ledger, self.plan, number)

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


class RecordRun(PaidRun):
    """All rounds of one plan over one silo's records.

    Several runs can share a ledger under different labels. Silos that are simulated on one machine from one seed differ
    by their `place`.

    Guarantee: each round of the federation is charged once, as long as the plan pays for rounds.
    """

    takes = frozenset({("record", "party")})

    def __init__(
        self,
        plan: Plan,
        *,
        ledger: Ledger,
        randomness: Randomness,
        label: str = "run",
        place: int = 0,
        owner: Owner | None = None,
    ) -> None:
        super().__init__(plan, ledger=ledger, randomness=randomness, label=label, owner=owner)
        self.training = plan.training()
        self.place = place
        self._rounds: set[int] = set()
        self._known = 0

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds that were charged so far; each of the ledger's entries is read once."""
        for entry in self.ledger.entries(start=self._known):
            note = entry.content()["note"] if entry.kind == "charge" else {}
            if note.get("run") == self.label:
                self._rounds.add(note["round"])
            self._known = entry.position + 1
        return frozenset(self._rounds)

    @property
    def reserved(self) -> bool:
        """Whether the price of the plan was reserved."""
        return any(each.label == self.label for each in self.ledger.reservations())

    def check_room(self) -> None:
        """Refuse a plan that the ledger has no room for (`BudgetExceeded`); nothing is reserved."""
        if not self.reserved:
            self.ledger.check_room(self.plan.runs)

    def give_back(self) -> None:
        """Release what the plan has left, for others: no round will follow."""
        if self.reserved:
            self.ledger.release_reservation(self.label)

    def round(self, number: int) -> "RecordRound":
        """A round that is paid for, with the noise of its steps; nothing is written where there is no room for it."""
        if number not in self.rounds:
            self.reserve()
        event, noise, steps = self.plan.round(0).event, self.training.noise, self.training.steps
        owned = self.owned(event, number)
        note = {"round": number, "noise_multiplier": noise.noise_multiplier, **owned, "run": self.label}
        return RecordRound(self, number, self.pay(event, ((noise, steps),), number=number, note=note))

    def statement(self) -> Statement:
        """The promise of all that was charged to the silo's ledger, by this run and others."""
        return self.plan.statement(self.ledger, own=len(self.rounds))


class ShareRun(PaidRun):
    """All rounds of a plan whose noise parties share, paid from the ledger of one of them.

    Guarantee: the receipt pays for one share, of the plan's noise and a list, in a round of the plan. Rounds that
    passed without this party cost it nothing. Where records are protected, the plan is priced for batches that are
    drawn with `batches`, once a round.
    """

    takes = frozenset({("client", "parties"), ("record", "parties")})

    def batches(self, number: int, *, place: int) -> Stream:
        """The random bits by which the silo in this place of the roster draws its batch of records. Private."""
        return self.randomness.stream("batches", number, place)

    def share(self, number: int, share: NoiseShare) -> Receipt:
        """Pay for a share of a round's noise."""
        said = self.plan.round(number)
        clip = self.plan.config.clip
        if isinstance(clip, MedianClip) or share.shared != self.plan.shared(number, clip):
            raise ConfigError(field="share", value=share.listed, remedy="give a share of the noise of the plan's round")
        self.reserve()
        if self.paid(number) and not self.randomness.simulated:
            raise ConfigError(field="round", value=number, remedy="it is paid for, and lost: go on with the next round")
        self.check_plan()
        owned = self.owned(said.event, number)
        noise = {"round": number, "noise_multiplier": said.noise_multiplier}
        note: Note = {**owned, **noise, "offer": owned.get("plan"), "plan": self.fingerprint}
        return self.pay(said.event, ((share, 1),), number=number, note=note)


class RecordRound:
    """Noise for the steps of one round, and for nothing else.

    Guarantee: the event of the round is on the ledger's disk; noise can be drawn as often as the round has steps.
    """

    def __init__(self, run: RecordRun, number: int, receipt: Receipt) -> None:
        self._run = run
        self._number = number
        self._receipt = receipt
        self._steps = 0

    @cached_property
    def batches(self) -> Stream:
        """The random bits of the batches of the round's steps, made once."""
        return self._run.randomness.stream("batches", self._number, self._run.place)

    def noise(self, total: Floats) -> Floats:
        """Hide a step: its clipped sum, with noise on it."""
        at = "noise", self._number, self._run.place, self._steps
        self._steps += 1
        return self._run.training.noised(total, receipt=self._receipt, at=at)
