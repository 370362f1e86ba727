"""A receipt proves that an event is on a ledger's disk. Noise is drawn against a receipt, and in no other way."""

import os
import threading
from collections.abc import Sequence
from typing import NoReturn

from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import ComposedDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent

from incrowd._random import Randomness, Stream, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent
from incrowd.privacy.ledger.chain import Entry

Draws = Sequence[tuple[object, int]]
"""Noises, and how often each may be drawn."""

SEAL = object()
"""`Ledger.charge` shows this when it makes a receipt. A test checks that no other function does."""

_ROUNDING = 1 - 1e-9


class Receipt:
    """The noises that a charge pays for, each to be drawn as often as it was paid for, and once for one purpose.

    Guarantee: the event of a receipt is on the ledger's disk. Noise comes from the randomness that the ledger noted
    with the charge, so a charge of the operating system's noise is never drawn from a seed. A noise that was not paid
    for, a draw too many, and a second draw for the same purpose are refused, among any number of threads.

    Edge cases: a receipt is neither copied nor sent to another process.
    """

    def __init__(self, entry: Entry, *, randomness: Randomness, pays_for: Draws, seal: object) -> None:
        if seal is not SEAL:
            raise ConfigError(field="receipt", value=entry.position, remedy="only Ledger.charge makes receipts")
        self.entry = entry
        self._randomness = randomness
        self._pays_for = pays_for
        self._remaining = [times for _, times in pays_for]
        self._drawn: set[tuple[str, tuple[int, ...]]] = set()
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def simulated(self) -> bool:
        """Whether its noise comes from a seed."""
        return self._randomness.simulated

    def noise_stream(self, noise: object, purpose: str, *indices: int) -> Stream:
        """Take one of the draws of a noise that were paid for: the stream that it is drawn from."""
        name = purpose, indices
        if os.getpid() != self._process:  # a copy that a fork made would draw what the original draws, too
            self.__reduce__()
        with self._lock:
            if name in self._drawn:
                raise ConfigError(field="noise", value=name, remedy="it was drawn already: charge again for another")
            its = [place for place, (paid, _) in enumerate(self._pays_for) if _same(paid, noise)]
            if not its:
                raise ConfigError(field="noise", value=noise, remedy="it is not what this receipt was paid for")
            usable = [place for place in its if self._remaining[place]]
            if not usable:
                raise BudgetExceeded(f"all noise that was paid for ({purpose}) is drawn: charge again")
            self._remaining[usable[0]] -= 1
            self._drawn.add(name)
        return self._randomness.stream(purpose, *indices)

    def __reduce__(self) -> NoReturn:
        raise ConfigError(field="receipt", value=self.entry.position, remedy="a receipt is not copied: charge again")


def noted(randomness: Randomness) -> str:
    """The name under which a ledger notes a source of randomness; a foreign one that takes the system's is refused."""
    if randomness.source == "system" and type(randomness) is not SystemRandomness:
        remedy = "only SystemRandomness may be called so: give another source a name of its own"
        raise ConfigError(field="randomness", value=type(randomness).__name__, remedy=remedy)
    return randomness.source


def check_paid(
    event: DpEvent,
    pays_for: Draws,
    *,
    relation: Relation,
    people: int = 1,
    planned: Sequence[RepeatedEvent] = (),
    per: object = None,
) -> None:
    """Refuse to pay for noises with an event that tells less than they do.

    A noise says what one draw costs (`event`). Where one unit replaces another, a sum moves by two of its bounds,
    unless the noise counts these already (`of_replacing`). If so many `people` draw, each draws once. A noise for a
    `whole_run` is paid for by all that is `planned` under the reservation.

    Guarantee: the sum of 1 / z^2 of the event's Gaussian releases is at least that of the noises, and so is the sum of
    the epsilons of all others.

    Edge cases: this function does not see how participants are sampled: `PrivateRun` and `RecordRun` draw them. A
    charge `per` feature, as the ledger notes, is one number of the many that a noise bounds together: not checked.
    """
    if per == "feature" or not pays_for:
        return
    once = [(_event_of(noise), -(-times // people), noise) for noise, times in pays_for]
    whole = [noise for _, _, noise in once if getattr(noise, "whole_run", False)]
    stated = _told(planned if whole and planned else [(event, 1)])
    drawn = (0.0, 0.0)
    for its, times, noise in once:
        bounds = 2 if relation is Relation.REPLACE_ONE and not getattr(noise, "of_replacing", False) else 1
        gaussian, pure = _told([(its, 1 if noise in whole else times)])
        drawn = drawn[0] + gaussian * bounds**2, drawn[1] + pure * bounds
    if any(told < its * _ROUNDING for told, its in zip(stated, drawn, strict=True)):
        remedy = "it costs less than the noise that it is to pay for: charge the event of that noise"
        raise ConfigError(field="event", value=event, remedy=remedy)


def _event_of(noise: object) -> DpEvent:
    stated = getattr(noise, "event", None)
    if stated is None:
        remedy = "it does not say what a draw costs: give one of incrowd.privacy.mechanism"
        raise ConfigError(field="pays_for", value=type(noise).__name__, remedy=remedy)
    return stated()


def _told(runs: Sequence[RepeatedEvent]) -> tuple[float, float]:
    """The sum of 1 / z^2 of Gaussian releases, and of the epsilons of others, as if all units took part in each."""
    gaussian = pure = 0.0
    for event, times in runs:
        within = (0.0, 0.0)
        if isinstance(event, GaussianDpEvent):
            inverse = 1 / event.noise_multiplier
            gaussian += times * inverse * inverse
        elif isinstance(event, LaplaceDpEvent):
            pure += times / event.noise_multiplier
        elif isinstance(event, PureDpEvent):
            pure += times * event.epsilon
        elif isinstance(event, ComposedDpEvent):
            within = _told([(each, 1) for each in event.events])
        elif isinstance(event, SelfComposedDpEvent | PoissonSampledDpEvent | SampledWithoutReplacementDpEvent):
            within = _told([(event.event, getattr(event, "count", 1))])
        gaussian, pure = gaussian + times * within[0], pure + times * within[1]
    return gaussian, pure


def _same(paid: object, noise: object) -> bool:
    return paid is noise or (type(paid) is type(noise) and bool(paid == noise))
