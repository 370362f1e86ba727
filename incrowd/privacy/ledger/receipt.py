"""What a charge gives: proof that an event is on a ledger's disk, and the only thing that noise is drawn against."""

import threading
from collections.abc import Sequence
from typing import NoReturn

from incrowd._random import Randomness, Stream, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.ledger.chain import Entry

Draws = Sequence[tuple[object, int]]
"""Noises, and how often each may be drawn."""

SEAL = object()
"""What `Ledger.charge` shows when it makes a receipt; nobody else does, and a test sees to it."""


class Receipt:
    """The noises that a charge pays for, each to be drawn as often as it was paid for, and never twice for one purpose.

    Guarantee: where there is a receipt, its event is on the ledger's disk. Noise comes from the randomness that the
    ledger noted with the charge, so what was charged as the operating system's cannot be drawn from a seed. A noise
    that was not paid for, a draw too many, and a second draw for the same purpose are refused, among any number of
    threads.

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
        self._lock = threading.Lock()

    @property
    def simulated(self) -> bool:
        """Whether its noise comes from a seed."""
        return self._randomness.simulated

    def noise_stream(self, noise: object, purpose: str, *indices: int) -> Stream:
        """Take one of the draws of a noise that were paid for: the stream that it is drawn from."""
        name = purpose, indices
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
    """What a ledger notes of a source of randomness.

    Edge cases: one that calls itself the system's, and is not, is refused.
    """
    if randomness.source == "system" and type(randomness) is not SystemRandomness:
        remedy = "only SystemRandomness may be called so: give another source a name of its own"
        raise ConfigError(field="randomness", value=type(randomness).__name__, remedy=remedy)
    return randomness.source


def _same(paid: object, noise: object) -> bool:
    return paid is noise or (type(paid) is type(noise) and bool(paid == noise))
