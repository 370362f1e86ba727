"""A device keeps its examples, and answers a server with noise of its own, within limits of its own.

A number leaves a table by one way: table -> features -> gradient -> clip -> charge -> noise. The server sends data
alone; the device reads it strictly, and refuses it unless the policy allows it.

Putting released numbers on an instance is post-processing: an answer that came too late goes out again on a newer
instance, and an answer whose reply was lost goes out again as the same bytes.
"""

import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _files
from incrowd._random import Floats, Randomness, SystemRandomness
from incrowd.drawdiscard.desk import MARK_BYTES, Drawn, Outcome, Reason, ServerLike
from incrowd.drawdiscard.fields import AnyTableField, known
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.pool import Instance, as_weights
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

ATTEMPTS = 4  # how often the device offers one answer to a server that calls it too late
AGAIN = (Reason.LATE, Reason.FORGED)  # another draw may help: a server that lost its pool has lost its key, too
LATER = (Reason.NOT_ADMITTED, Reason.DAY_OVER)  # the answer waits for the next `contribute`

LONGEST_TICKET = 1024  # bytes of the longest ticket that a device keeps
MOST_WAITING = 16  # the outbox keeps the last answers to this many specifications
_DIGEST = 32
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
    """The fit of a specification to a device's examples, for its owner alone: `usable` examples have a response."""

    examples: int
    usable: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.usable} of {self.examples} examples can be learnt from"
        return "\n- ".join([text, *self.problems])


class NoExamplesWarning(UserWarning):
    """Warns the owner: a contribution was noise alone, and cost as much as any."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """Released whole numbers for the specification of this fingerprint, and the update and ticket that carry them."""

    fingerprint: str
    released: Whole
    update: Instance
    ticket: bytes

    @classmethod
    def of(cls, drawn: Drawn, released: Whole) -> Self:
        """The numbers on an instance that the device drew."""
        return cls(drawn.fingerprint, released, stepped(drawn.weights, released, gamma=drawn.gamma), drawn.ticket)

    def to_bytes(self) -> bytes:
        """The content of a file, with a digest that detects damage."""
        kept = {
            "fingerprint": self.fingerprint,
            "step": self.released.step,
            "steps": self.released.steps.astype("<i8").tobytes().hex(),
            "update": self.update.astype("<f4").tobytes().hex(),
            "ticket": self.ticket.hex(),
        }
        content = json.dumps(kept).encode()
        return hashlib.sha256(content).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The answer in the content of a file; damaged content is a `DataError`."""
        digest, content = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise DataError("a waiting answer is damaged")
        kept = json.loads(content)
        steps, update, ticket = (bytes.fromhex(kept[name]) for name in ("steps", "update", "ticket"))
        released = Whole(np.frombuffer(steps, "<i8").astype(np.int64), kept["step"])
        return cls(kept["fingerprint"], released, np.frombuffer(update, "<f4").astype(np.float32), ticket)


def stepped(weights: Instance, released: Whole, *, gamma: float) -> Instance:
    """An instance after a step of size gamma along released whole numbers: in float64, then rounded to float32.

    Every language gives the same bits: gamma times the step's value, times a whole number, taken from a weight.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moved = weights.astype(np.float64) - (gamma * released.step) * released.steps.astype(np.float64)
        return moved.astype(np.float32)


@dataclass(frozen=True)
class Outbox:
    """Waiting answers, a file for each specification beside a device's ledger; in memory without a path.

    Guarantee: when `keep` returns, the answer is on disk, and stays until `clear`, unless the device keeps answers to
    `MOST_WAITING` other specifications after it. A damaged file counts as none.
    """

    path: Path | None
    _memory: dict[str, Waiting] = field(default_factory=dict, repr=False, compare=False)

    def keep(self, waiting: Waiting) -> None:
        """Keep an answer; it is on disk when this returns."""
        if self.path is None:
            self._memory[waiting.fingerprint] = waiting
            return
        place = self._place(self.path, waiting.fingerprint)
        _files.write(place, waiting.to_bytes())
        files = [other for other in place.parent.iterdir() if other.name.startswith(f"{self.path.name}-")]
        kept = [other for other in files if other.suffix != _files.PART]
        for old in sorted(kept, key=lambda other: other.stat().st_mtime_ns)[:-MOST_WAITING]:
            old.unlink(missing_ok=True)

    def waiting(self, fingerprint: str) -> Waiting | None:
        """The waiting answer to this specification, if any."""
        if self.path is None:
            return self._memory.get(fingerprint)
        try:
            found = Waiting.from_bytes(self._place(self.path, fingerprint).read_bytes())
        except (FileNotFoundError, DataError):
            return None
        return found if found.fingerprint == fingerprint else None

    def clear(self, fingerprint: str) -> None:
        """Forget an answer that has arrived. If a crash brings it back, the server counts it once."""
        if self.path is None:
            self._memory.pop(fingerprint, None)
        else:
            self._place(self.path, fingerprint).unlink(missing_ok=True)

    @staticmethod
    def _place(path: Path, fingerprint: str) -> Path:
        return Path(f"{path}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}")


class Device:
    """A table of examples, a policy and a ledger; it answers servers.

    `data` is a SQLite file with `table` (or view), a list of dicts, a dict of columns, or a data frame. The ledger is a
    file, ``<data>.ledger`` by default; a new one has the policy's budget.

    Guarantee: the ledger on disk has a contribution's charge before the device draws its noise from the operating
    system (simulations may ask otherwise). A contribution that the policy or the budget refuses spends and releases
    nothing. The device runs nothing that a server sends. A release depends on the table through one noised gradient,
    whatever the server sends. Processes that share a ledger take turns, and its limits hold for all of them.

    A paid answer that did not arrive waits beside the ledger (see `Outbox`). It goes out with the next `contribute`, at
    no further cost, as the same bytes. A device killed between paying and keeping its answer loses that payment: it
    never draws noise twice for one. A device without usable examples answers with noise alone: silence would tell that
    its table is empty. `check` and a `NoExamplesWarning` tell its owner.
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
        if isinstance(ledger, Ledger):
            self.ledger, place = ledger, None
        else:
            path = _ledger_path(data, ledger)
            identity, place = f"a device's examples, per {self.policy.unit}", path.resolve()
            self.ledger = Ledger.open(path, budget=self.policy.budget, relation=RELATION, data_identity=identity)
        self._outbox = Outbox(place and _beside(place, ".outbox"))
        self._turn = _files.Turn(place and _beside(place, ".lock"))
        self._randomness = randomness or SystemRandomness()
        limit, unit = self.policy.daily_epsilon, self.policy.unit
        self._daily = DailyLimit(ledger=self.ledger, epsilon=limit, today=today, per=unit)
        if self.ledger.relation is not RELATION:
            raise LedgerMismatch(
                f"the ledger's neighbouring relation is {self.ledger.relation.name}: a device's is {RELATION.name}"
            )

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the ledger and the table."""
        self.ledger.close()
        self._source.close()

    def contribute(self, server: ServerLike) -> Outcome:
        """Draw, learn, pay, add noise and offer; gives the server's answer.

        When the server calls an answer too late, or no longer knows its ticket, the device offers the same noised
        numbers on a newer instance, up to `ATTEMPTS` times. If every attempt is too late, or an offer raises (say a
        network is down), the answer waits in the outbox. An answer that the server turns away is lost, with its cost.
        """
        asked = _read(server.specification_json())
        with self._turn:
            waiting, examples = self._outbox.waiting(asked.fingerprint), None
            if waiting is None:
                drawn = _drawn(server, asked)
                released, examples = self._released(asked, drawn.weights)
                waiting = Waiting.of(self._marked(asked, drawn), released)
                self._outbox.keep(waiting)
            outcome = self._bring(server, asked, waiting)
        _warn(examples)  # at the very end: a server sees the same whether the owner's code stops at it or not
        return outcome

    def answer(self, specification: str | bytes, weights: ArrayLike, gamma: float | None = None) -> Instance:
        """The updated instance, for a transport of your own."""
        asked = _read(specification)
        with self._turn:
            drawn = _checked(
                Drawn(_instance(weights, asked.size), "", asked.gamma if gamma is None else gamma, b""), asked.size
            )
            released, examples = self._released(asked, drawn.weights)
        _warn(examples)
        return stepped(drawn.weights, released, gamma=drawn.gamma)

    def check(self, specification: Specification) -> Fit:
        """Reasons of the policy to refuse a specification, and values that would count as missing.

        It spends nothing, and no server learns of it.
        """
        problems = []
        try:
            self.policy.check(specification, self._source.columns)
        except SpecificationRefused as error:
            problems.append(f"refused: {error}")
        table = self._source.read([name for name in specification.names if name in self._source.columns])
        for name, (column, described) in specification.used.items():
            if column in table:
                problems += _misfits(name, table[column], described)
        usable = sum(known(specification.predicted, table.get(specification.names[0], [])))
        if not usable:
            problems.append(
                "no example has a response that counts: a contribution would be noise alone, and cost as much"
            )
        return Fit(len(next(iter(table.values()), ())), usable, tuple(problems))

    def spent_today(self) -> float:
        """The epsilon of the present day's contributions together."""
        return self._daily.spent()

    def statement(self) -> Statement:
        """The guarantee for all releases of this device."""
        return stated(
            self.ledger,
            unit="device",
            trust=LOCAL_TRUST.replace("client", "device"),
            sampler="none",
            own=self.ledger.charges()[0],
            caveats=(PER_NUMBER,) if self.policy.unit == "feature" else (),
            assumed=UNCHECKED,
        )

    def _bring(self, server: ServerLike, asked: Specification, waiting: Waiting) -> Outcome:
        """Offer a waiting answer until the server's answer is final."""
        outcome = Outcome(Reason.LATE)
        for attempt in range(ATTEMPTS):
            if attempt:
                waiting = Waiting.of(self._marked(asked, _drawn(server, asked)), waiting.released)
                self._outbox.keep(waiting)
            outcome = server.offer(waiting.update, waiting.ticket)
            if outcome.reason not in (*AGAIN, *LATER):
                self._outbox.clear(asked.fingerprint)
            if outcome.reason not in AGAIN:
                break
        return outcome

    def _marked(self, asked: Specification, drawn: Drawn) -> Drawn:
        """Add a mark to a direction's ticket: another device may name the same direction from the same version."""
        if asked.noise != "direction":
            return drawn
        stream = self._randomness.stream("mark", int(self.ledger.head[:12], 16))
        return drawn._replace(ticket=drawn.ticket + stream.bits(MARK_BYTES // 8).tobytes())

    def _released(self, asked: Specification, weights: Instance) -> tuple[Whole, int]:
        """The noised gradient at these weights, paid for, and the number of examples, which is private."""
        self.policy.check(asked, self._source.columns)
        gradient, examples = self._gradient(asked, weights.astype(np.float64))
        paid = partial(pay, limit=self._daily, randomness=self._randomness, specification=asked.fingerprint)
        return Contribution(asked.mechanism, gradient).release(charge=paid), examples

    def _gradient(self, asked: Specification, instance: Floats) -> tuple[Floats, int]:
        """The mean gradient over a random sample of the device's examples, and their number. Private."""
        stream = self._randomness.stream("examples", int(self.ledger.head[:12], 16))
        features, responses = asked.encode(self._source.sample(asked.names, most=asked.examples, stream=stream))
        with np.errstate(all="ignore"):  # a number that is not finite counts as zero
            return asked.kept(asked.model.gradient(instance, features, responses)), len(responses)


def pay(
    mechanism: Mechanism, *, limit: DailyLimit, randomness: Randomness = EARNEST, specification: str = ""
) -> Receipt:
    """Charge one contribution to a device's ledger, in the unit of its daily limit; the caller holds its lock.

    Guarantee: the contributions of one day cost at most the limit. A device whose unit is the model pays for all
    numbers of a contribution, also of one that is private per feature.
    """
    if type(mechanism) is not Mechanism:
        remedy = "give a Mechanism of ours: others could state one noise and draw another"
        raise ConfigError(field="mechanism", value=type(mechanism).__name__, remedy=remedy)
    unit: Unit = "feature" if limit.per == "feature" else "model"
    event = mechanism.event(unit)
    note = {"specification": specification, "day": limit.check([(event, 1)]), "per": unit}
    return limit.ledger.charge(event, pays_for=mechanism.pays_for, randomness=randomness, note=note)


def _warn(examples: int | None) -> None:
    if examples == 0:
        warnings.warn(NOISE_ALONE, NoExamplesWarning, stacklevel=3)


def _ledger_path(data: object, ledger: str | PathLike[str] | None) -> Path:
    if ledger is not None:
        return Path(ledger)
    if not isinstance(data, str | PathLike):
        remedy = "examples in memory have no place: name a file for the ledger"
        raise ConfigError(field="ledger", value=None, remedy=remedy)
    return _beside(Path(data), ".ledger")


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _read(specification: str | bytes) -> Specification:
    try:
        return Specification.from_json(specification)
    except ConfigError as error:
        raise SpecificationRefused(f"the server's specification makes no sense: {error}") from error


def _misfits(name: str, values: list[object], described: AnyTableField) -> list[str]:
    """A line for each reason that values of a field do not fit, with the first such value."""
    reasons = [described.misfit(value) for value in values]
    return [
        f"{name}: {count} of {len(values)} {why}"
        + ("" if why == "is missing" else f" (such as {values[reasons.index(why)]!r:.60})")
        for why, count in Counter(reasons).items()
        if why is not None
    ]


def _drawn(server: ServerLike, asked: Specification) -> Drawn:
    """Draw an instance of this specification, or refuse it before the device spends anything."""
    drawn = server.draw()
    if drawn.fingerprint != asked.fingerprint:
        raise SpecificationRefused("the server's instance is of another specification than it states")
    return _checked(drawn, asked.size)


def _checked(drawn: Drawn, size: int) -> Drawn:
    if not 0 < drawn.gamma < math.inf:
        raise SpecificationRefused(f"the server asks for steps of {drawn.gamma}: that is no size")
    ticket: object = drawn.ticket  # a server's code may break its type
    if not isinstance(ticket, bytes) or len(ticket) > LONGEST_TICKET:
        raise SpecificationRefused(f"the server's ticket is not at most {LONGEST_TICKET} bytes")
    return drawn._replace(weights=_instance(drawn.weights, size))


def _instance(weights: ArrayLike, size: int) -> Instance:
    try:
        return as_weights(weights, size, largest=float(np.finfo(np.float32).max))
    except DataError as error:
        raise SpecificationRefused(f"the server's instance makes no sense: {error}") from error
