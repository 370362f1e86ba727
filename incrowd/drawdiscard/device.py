"""A device: it keeps its examples, and answers a server with noise of its own, within limits of its own.

There is one way from its table to a released number: table -> features -> gradient -> clip -> charge -> noise. The
server's part is data, which is read strictly and refused where the device's policy does not allow it.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _files
from incrowd._random import Floats, Randomness, SystemRandomness
from incrowd.drawdiscard.desk import MARK_BYTES, Drawn, Reason
from incrowd.drawdiscard.fields import known
from incrowd.drawdiscard.outbox import Outbox, Waiting, stepped
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.pool import Instance, as_weights
from incrowd.drawdiscard.server import Outcome, ServerLike
from incrowd.drawdiscard.source import source_of
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError, LedgerMismatch, SpecificationRefused
from incrowd.privacy.daily import DailyLimit, utc_today
from incrowd.privacy.ledger.ledger import EARNEST, Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism, Unit
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.statement import FINITE, LOCAL_TRUST, UNCHANGED, Statement, stated

UNCHECKED = (
    UNCHANGED,
    "the examples and the ledger are this device's: who keeps the same examples on two devices is protected once for "
    "each",
    FINITE,
)

ATTEMPTS = 4
"""So often one answer is put on an instance and offered, where the server says that it comes too late."""

AGAIN = (Reason.LATE, Reason.FORGED)
LATER = (Reason.NOT_ADMITTED, Reason.DAY_OVER)
"""What a device answers with the same noise on another draw: a server that lost its pool has lost its key, too."""

LONGEST_TICKET = 1024
"""Bytes of the longest ticket that a device keeps."""

NOISE_ALONE = (
    "none of the examples has a response that counts, so what was contributed is noise alone, and cost as much as any: "
    "`check` says what does not fit"
)

PER_NUMBER = (
    "epsilon is that of each released number on its own: someone who reads all numbers of a contribution learns more, "
    "up to epsilon times their number"
)


@dataclass(frozen=True)
class Fit:
    """How a specification fits a device's own examples: for its owner's eyes, never for a server's.

    `usable` are the examples with a response that counts.
    """

    examples: int
    usable: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.usable} of {self.examples} examples can be learnt from"
        return "\n- ".join([text, *self.problems])


class NoExamplesWarning(UserWarning):
    """A contribution was noise alone, and cost as much as any: for the owner's ears."""


class Device:
    """A table of examples, a policy and a ledger: what answers a server.

    `data` is the path of a SQLite file, of which `table` may be a table or a view, or a list of dicts, a dict of
    columns, a data frame. The ledger is a file, ``<data>.ledger`` unless named; it is begun with the policy's budget.

    Guarantee: a contribution is charged to the device's ledger, on disk, before its noise is drawn (from the operating
    system unless a simulation asks otherwise); when it is refused, by the policy or for lack of budget, nothing is
    spent and nothing released. A server sends plain data only; no part of it is run. What is released depends on the
    table through one noised gradient, whatever model and weights the server sends. However many processes share a
    ledger, they contribute one after the other, and its limits hold for all of them.

    What is released is whole numbers; the instance and the step size that came with it enter only afterwards. An answer
    that is paid for and did not arrive lies beside the ledger (see `Outbox`) and goes out with the next `contribute`,
    at no further cost: as the same bytes if it was sent, for the server may have it. A device that is killed between
    paying and keeping its answer loses that payment, for noise is never drawn twice for one.

    With no example that fits, the device answers all the same, with noise alone: silence would tell that its table is
    empty; `check` tells the owner, and so does a `NoExamplesWarning` when it has happened. The outbox of a ledger that
    is not a file is in memory.
    """

    def __init__(
        self,
        data: object,
        *,
        table: str = "examples",
        ledger: str | PathLike[str] | Ledger | None = None,
        policy: Policy | None = None,
        randomness: Randomness | None = None,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self.policy = policy or Policy()
        self._source = source_of(data, table)
        place = None if isinstance(ledger, Ledger) else _place(data, ledger).resolve()
        self.ledger = ledger if isinstance(ledger, Ledger) else _begun(_place(data, ledger), self.policy)
        self._outbox = Outbox(None if place is None else _beside(place, ".outbox"))
        self._turn = _files.Turn(None if place is None else _beside(place, ".lock"))
        self._randomness = randomness or SystemRandomness()
        self._daily = DailyLimit(
            ledger=self.ledger, epsilon=self.policy.daily_epsilon, today=today, per=self.policy.unit
        )
        if self.ledger.relation is not RELATION:
            raise LedgerMismatch(
                f"the ledger's neighbouring relation is {self.ledger.relation.name}: a device's is {RELATION.name}"
            )

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the ledger and the table."""
        self.ledger.close()
        self._source.close()

    def contribute(self, server: ServerLike) -> Outcome:
        """Draw, learn, pay, add noise and offer; what the server says to that.

        What it says is final but for two words: where an answer comes too late, or the server no longer knows its
        ticket, the same noised numbers go out again on a newer instance, up to `ATTEMPTS` times.

        Where the offer raises (say a network is down) or every attempt is too late, the answer waits in the outbox. An
        answer that the server turns away is lost, and so is what it cost.
        """
        asked = _read(server.specification_json())
        with self._turn:
            waiting, examples = self._outbox.waiting(asked.fingerprint), None
            if waiting is None:
                drawn = _drawn(server, asked)
                released, examples = self._released(asked, drawn.weights)
                waiting = Waiting(asked.fingerprint, released).on(self._marked(asked, drawn))
                self._outbox.keep(waiting)
            outcome = self._bring(server, asked, waiting)
        _tell(examples)  # at the very end, so that a server hears the same whatever becomes of the warning
        return outcome

    def answer(self, specification: str | bytes, weights: ArrayLike, gamma: float | None = None) -> Instance:
        """The instance that a server sent, updated: what goes back to it, for who brings it there otherwise."""
        asked = _read(specification)
        with self._turn:
            drawn = _checked(Drawn(_instance(weights, asked.size), "", asked.gamma if gamma is None else gamma, b""))
            released, examples = self._released(asked, drawn.weights)
        _tell(examples)
        return stepped(drawn.weights, released, gamma=drawn.gamma)

    def check(self, specification: Specification) -> Fit:
        """What the owner should know before the first contribution: what is refused, and what would count as missing.

        Nothing is spent, and no server learns of it.
        """
        refused = self._refused(specification)
        here = [name for name in specification.names if name in self._source.columns]
        table = self._source.read(here)
        fields = {
            name: (table[column], field) for name, (column, field) in specification.used.items() if column in here
        }
        examples = len(next(iter(table.values()), ()))
        usable = sum(known(specification.predicted, table.get(specification.names[0], [])))
        told = (
            _told(name, values, [field.misfit(value) for value in values]) for name, (values, field) in fields.items()
        )
        problems = [*refused, *(line for lines in told for line in lines)]
        if not usable:
            problems.append(
                "no example has a response that counts: a contribution would be noise alone, and cost as much"
            )
        return Fit(examples, usable, tuple(problems))

    def spent_today(self) -> float:
        """What the present day's contributions cost together, in epsilon."""
        return self._daily.spent()

    def statement(self) -> Statement:
        """What this device may claim for all that it has released."""
        return stated(
            self.ledger,
            unit="device",
            trust=LOCAL_TRUST.replace("client", "device"),
            sampler="none",
            own=self.ledger.charges()[0],
            caveats=(PER_NUMBER,) if self.policy.unit == "feature" else (),
            assumed=UNCHECKED,
        )

    def _refused(self, asked: Specification) -> list[str]:
        try:
            self.policy.check(asked, self._source.columns)
        except SpecificationRefused as error:
            return [f"refused: {error}"]
        return []

    def _bring(self, server: ServerLike, asked: Specification, waiting: Waiting) -> Outcome:
        """Offer what waits until the server has a last word."""
        outcome = Outcome(Reason.LATE)
        for attempt in range(ATTEMPTS):
            if attempt or waiting.sent is None:
                waiting = waiting.on(self._marked(asked, _drawn(server, asked)))
                self._outbox.keep(waiting)
            if waiting.sent is not None:
                outcome = server.offer(*waiting.sent)
            if outcome.reason not in (*AGAIN, *LATER):
                self._outbox.clear(asked.fingerprint)
            if outcome.reason not in AGAIN:
                break
        return outcome

    def _marked(self, asked: Specification, drawn: Drawn) -> Drawn:
        """The same with a mark behind the ticket: the same direction from there may be another device's, too."""
        if asked.noise != "direction":
            return drawn
        stream = self._randomness.stream("mark", int(self.ledger.head[:12], 16))
        return drawn._replace(ticket=drawn.ticket + stream.bits(MARK_BYTES // 8).tobytes())

    def _released(self, asked: Specification, weights: Instance) -> tuple[Whole, int]:
        """The noised gradient at these weights, paid for, and how many examples there were. The latter is private."""
        self.policy.check(asked, self._source.columns)
        gradient, examples = self._gradient(asked, weights.astype(np.float64))
        paid = partial(pay, limit=self._daily, randomness=self._randomness, specification=asked.fingerprint)
        return Contribution(asked.mechanism, gradient).release(charge=paid), examples

    def _gradient(self, asked: Specification, instance: Floats) -> tuple[Floats, int]:
        """The mean gradient over some of the device's examples, and how many count. Private."""
        stream = self._randomness.stream("examples", int(self.ledger.head[:12], 16))  # other examples every time
        features, responses = asked.encode(self._source.sample(asked.names, most=asked.examples, stream=stream))
        with np.errstate(all="ignore"):  # what is not finite in the end counts as zero, without a word
            gradient = asked.kept(asked.model.gradient(instance, features, responses).astype(np.float64))
        return gradient.astype(np.float64), len(responses)


def pay(
    mechanism: Mechanism, *, limit: DailyLimit, randomness: Randomness = EARNEST, specification: str = ""
) -> Receipt:
    """Charge one contribution to a device's ledger, in the unit of its daily limit; the caller holds its lock.

    Guarantee: the contributions of one day cost at most the limit. Where the unit is the model and a contribution is
    private per feature, all of its numbers are paid for.
    """
    if type(mechanism) is not Mechanism:
        remedy = "give a Mechanism of ours: others could state one noise and draw another"
        raise ConfigError(field="mechanism", value=type(mechanism).__name__, remedy=remedy)
    unit: Unit = "feature" if limit.per == "feature" else "model"
    event = mechanism.event(unit)
    note = {"specification": specification, "day": limit.check([(event, 1)]), "per": unit}
    return limit.ledger.charge(event, pays_for=mechanism.pays_for, randomness=randomness, note=note)


def _tell(examples: int | None) -> None:
    if examples == 0:
        warnings.warn(NOISE_ALONE, NoExamplesWarning, stacklevel=3)


def _begun(place: Path, policy: Policy) -> Ledger:
    identity = f"a device's examples, per {policy.unit}"
    return Ledger.open(place, budget=policy.budget, relation=RELATION, data_identity=identity)


def _place(data: object, ledger: str | PathLike[str] | None) -> Path:
    if ledger is not None:
        return Path(ledger)
    if not isinstance(data, str | PathLike):
        raise ConfigError(
            field="ledger", value=None, remedy="examples in memory have no place: name a file for the ledger"
        )
    return _beside(Path(data), ".ledger")


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _read(specification: str | bytes) -> Specification:
    try:
        return Specification.from_json(specification)
    except ConfigError as error:
        raise SpecificationRefused(f"the server's specification makes no sense: {error}") from error


def _told(name: str, values: list[object], problems: list[str | None]) -> list[str]:
    counts = Counter(why for why in problems if why is not None)
    lines = []
    for why, count in counts.items():
        example = "" if why == "is missing" else f" (such as {values[problems.index(why)]!r:.60})"
        lines.append(f"{name}: {count} of {len(problems)} {why}{example}")
    return lines


def _drawn(server: ServerLike, asked: Specification) -> Drawn:
    """An instance of this specification that makes sense; nothing is spent where it does not."""
    drawn = server.draw()
    if drawn.fingerprint != asked.fingerprint:
        raise SpecificationRefused("the server's instance is of another specification than it states")
    return _checked(drawn._replace(weights=_instance(drawn.weights, asked.size)))


def _checked(drawn: Drawn) -> Drawn:
    if not 0 < drawn.gamma < math.inf:
        raise SpecificationRefused(f"the server asks for steps of {drawn.gamma}: that is no size")
    ticket: object = drawn.ticket  # whatever a server's code says of its type
    if not isinstance(ticket, bytes) or len(ticket) > LONGEST_TICKET:
        raise SpecificationRefused(f"the server's ticket is not at most {LONGEST_TICKET} bytes")
    return drawn


def _instance(weights: ArrayLike, size: int) -> Instance:
    try:
        return as_weights(weights, size, largest=float(np.finfo(np.float32).max))
    except DataError as error:
        raise SpecificationRefused(f"the server's instance makes no sense: {error}") from error
