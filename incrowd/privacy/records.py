"""Rounds that a party pays from its own ledger, before a batch or any noise is drawn for them."""

from functools import cached_property
from typing import Protocol

from dp_accounting import DpEvent

from incrowd._random import Floats, Randomness, Stream
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.privacy.mechanism.shared import NoiseShare
from incrowd.privacy.paid import Note, PaidRun
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement


class Owner(Protocol):
    """The owner of a ledger: limits beside its budget, and notes with each charge."""

    def admit(self, ledger: Ledger, event: DpEvent) -> None:
        """Refuse what the ledger would pay for and its owner does not want."""
        ...

    def note(self, ledger: Ledger, plan: Plan, number: int) -> Note:
        """More that the charge of a round notes."""
        ...


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
        super().__init__(plan, ledger=ledger, randomness=randomness, label=label)
        self.training = plan.training()
        self.place = place
        self._owner = owner
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
        """A round that is paid for, with the noise of its steps.

        Edge cases: `BudgetExceeded` where plan, ledger or owner have no room for it; nothing was written then. A round
        that was charged before under the operating system's randomness: `ConfigError`.
        """
        if number not in self.rounds:
            self.reserve()
            if self.ledger.reservation(self.label).charged == self.plan.rounds:
                raise BudgetExceeded(f"all {self.plan.rounds} rounds of the plan are charged: make a new plan")
        event, key = self.plan.round(0).event, f"round {number}"
        owned: Note = {}
        if self._owner is not None:
            if not self.ledger.paid(f"{self.label}: {key}"):
                self._owner.admit(self.ledger, event)
            owned = self._owner.note(self.ledger, self.plan, number)
        noise, steps = self.training.noise, self.training.steps
        note = {"round": number, "noise_multiplier": noise.noise_multiplier, **owned, "run": self.label}
        receipt = self.pay(event, ((noise, steps),), key=key, reservation=self.label, note=note)
        return RecordRound(self, number, receipt)

    def statement(self) -> Statement:
        """The promise of all that was charged to the silo's ledger, by this run and others."""
        return self.plan.statement(self.ledger, own=len(self.rounds))


class ShareRun(PaidRun):
    """All rounds of a plan whose noise parties share, paid from the ledger of one of them.

    Guarantee: the receipt pays for one share, of the plan's noise and a list, in a round of the plan. Rounds that
    passed without this party cost it nothing.

    Edge cases: a round that was charged before is refused: its noise is not drawn twice. Where records are protected,
    the plan is priced for batches that are drawn with `batches`, once a round.
    """

    takes = frozenset({("client", "parties"), ("record", "parties")})

    def __init__(
        self, plan: Plan, *, ledger: Ledger, randomness: Randomness, label: str = "run", owner: Owner | None = None
    ) -> None:
        super().__init__(plan, ledger=ledger, randomness=randomness, label=label)
        self._owner = owner

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
        key = f"round {number}"
        if self.ledger.paid(f"{self.label}: {key}") and not self.randomness.simulated:
            raise ConfigError(field="round", value=number, remedy="it is paid for, and lost: go on with the next round")
        self.check_plan()
        owned: Note = {}
        if self._owner is not None:
            self._owner.admit(self.ledger, said.event)
            owned = self._owner.note(self.ledger, self.plan, number)
        noise = {"round": number, "noise_multiplier": said.noise_multiplier}
        note: Note = {**owned, **noise, "offer": owned.get("plan"), "plan": self.fingerprint}
        return self.pay(said.event, ((share, 1),), key=key, reservation=self.label, note=note)


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
