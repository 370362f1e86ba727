"""A device: it keeps its examples, and answers a server with noise of its own, within limits of its own.

There is one way from its table to a released number: table -> features -> gradient -> clip -> charge -> noise. The
server's part is data, which is read strictly and refused where the device's policy does not allow it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _files
from incrowd._random import Floats, Randomness, SystemRandomness
from incrowd.drawdiscard.fields import known, misfits
from incrowd.drawdiscard.glm import FlatModel
from incrowd.drawdiscard.outbox import Outbox
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.pool import as_weights
from incrowd.drawdiscard.server import Outcome, ServerLike
from incrowd.drawdiscard.source import source_of
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError, SpecificationRefused
from incrowd.privacy.allowance import Allowance, utc_today
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.device import RELATION, Contribution
from incrowd.privacy.statement import FINITE, LOCAL_TRUST, UNCHANGED, Statement, stated

UNCHECKED = (
    UNCHANGED,
    "the examples and the ledger are this device's: who keeps the same examples on two devices is protected once for "
    "each",
    FINITE,
)

PER_NUMBER = (
    "epsilon is that of each released number on its own: someone who reads all numbers of a contribution learns more, "
    "up to epsilon times their number"
)


@dataclass(frozen=True)
class Fit:
    """How a specification fits a device's own examples: for its owner's eyes, never for a server's.

    `usable` are the examples with a response that counts; `problems` what else there is to know, empty where all is
    well.
    """

    examples: int
    usable: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.usable} of {self.examples} examples can be learnt from"
        return "\n- ".join([text, *self.problems])


class Device:
    """A table of examples, a policy and a ledger: what answers a server.

    `data` is the path of a SQLite file, of which `table` may be a table or a view, or a list of dicts, a dict of
    columns, a data frame. The ledger is a file, ``<data>.ledger`` unless named; it is begun with the policy's budget.

    Guarantee: a contribution is charged to the device's ledger, on disk, before its noise is drawn (from the operating
    system unless a simulation asks otherwise); when it is refused, by the policy or for lack of budget, nothing is
    spent and nothing released. A server sends plain data only; no part of it is run. What is released depends on the
    table through one noised gradient, whatever model and weights the server sends. However many processes share a
    ledger, they contribute one after the other, and its limits hold for all of them. An answer that is paid for and did
    not arrive lies in ``<ledger>.outbox`` and goes out with the next `contribute`, at no further cost; a device that is
    killed between paying and keeping its answer loses that payment, for noise is never drawn twice for one.

    Edge cases: with no example that fits, the device answers all the same, with noise alone: silence would tell that
    its table is empty; `check` tells the owner. Weights that are not finite, or of another number, are refused, and a
    specification that is not the one of the weights. A ledger that counts in another unit, or has another budget, is
    refused (`LedgerMismatch`). One that is not a file has no outbox.
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
        self._allowance = Allowance(
            ledger=self.ledger,
            daily_epsilon=self.policy.daily_epsilon,
            exclusive=lambda: self._turn,
            unit=self.policy.unit,
            today=today,
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

        Edge cases: as `answer`; where the offer raises (say a network is down), the answer waits in the outbox.
        """
        asked = _read(server.specification_json())
        with self._turn:
            update = self._outbox.waiting(asked.fingerprint)
            if update is None:
                weights, fingerprint = server.draw()
                if fingerprint != asked.fingerprint:
                    raise SpecificationRefused("the server's instance is of another specification than it states")
                update = self._answer(asked, weights)
                self._outbox.keep(asked.fingerprint, update)
            outcome = server.offer(update, asked.fingerprint)
            self._outbox.clear()
        return outcome

    def answer(self, specification: str | bytes, weights: ArrayLike) -> Floats:
        """The instance that a server sent, updated: what goes back to it, for who brings it there otherwise.

        Edge cases: `SpecificationRefused` or `BudgetExceeded`, and nothing was spent or released.
        """
        with self._turn:
            return self._answer(_read(specification), weights)

    def check(self, specification: Specification) -> Fit:
        """What the owner should know before the first contribution: what is refused, and what would count as missing.

        Nothing is spent, and no server learns of it.
        """
        refused = self._refused(specification)
        here = [name for name in specification.names if name in self._source.columns]
        table = self._source.read(here)
        complaints = {name: misfits(specification.fields[name], table[name]) for name in here}
        examples = len(next(iter(table.values()), ()))
        usable = sum(known(specification.fields[specification.response], table.get(specification.response, [])))
        problems = [*refused, *(line for name in here for line in _told(name, table[name], complaints[name]))]
        if not usable:
            problems.append(
                "no example has a response that counts: a contribution would be noise alone, and cost as much"
            )
        return Fit(examples, usable, tuple(problems))

    def spent_today(self) -> float:
        """What the present day's contributions cost together, in epsilon."""
        return self._allowance.spent_today()

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

    def _answer(self, asked: Specification, weights: ArrayLike) -> Floats:
        self.policy.check(asked, self._source.columns)
        instance, model = _instance(weights, asked.size), _model(asked)
        contribution = Contribution(asked.mechanism, self._gradient(asked, model, instance))
        note = {"specification": asked.fingerprint}
        noised = contribution.release(
            charge=lambda mechanism: self._allowance.charge(mechanism, randomness=self._randomness, note=note)
        )
        with np.errstate(over="ignore"):  # a server may ask for steps beyond every number
            return instance - asked.gamma * noised

    def _gradient(self, asked: Specification, model: FlatModel, instance: Floats) -> Floats:
        """The mean gradient over some of the device's examples. Private."""
        stream = self._randomness.stream("examples", int(self.ledger.head[:12], 16))  # other examples every time
        features, responses = asked.encode(self._source.sample(asked.names, most=asked.examples, stream=stream))
        with np.errstate(all="ignore"):  # what is not finite in the end counts as zero, without a word
            gradient: Floats = model.gradient(instance, features, responses).astype(np.float64)
        return gradient


def _begun(place: Path, policy: Policy) -> Ledger:
    """The ledger at a place, which is begun if there is none."""
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
    """A line for each way in which values of a column do not fit, with one of them."""
    counts = Counter(why for why in problems if why is not None)
    lines = []
    for why, count in counts.items():
        example = "" if why == "is missing" else f" (such as {values[problems.index(why)]!r:.60})"
        lines.append(f"{name}: {count} of {len(problems)} {why}{example}")
    return lines


def _model(asked: Specification) -> FlatModel:
    try:
        return asked.model
    except ImportError as error:
        raise SpecificationRefused(f"this device cannot compute such a model: {error}") from error


def _instance(weights: ArrayLike, size: int) -> Floats:
    try:
        return as_weights(weights, size, largest=np.finfo(np.float64).max)
    except DataError as error:
        raise SpecificationRefused(f"the server's instance makes no sense: {error}") from error
