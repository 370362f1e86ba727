"""The desk: what a server looks at before an answer may enter its pool, wherever the pool is."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from numpy.typing import ArrayLike

from incrowd._random import Randomness
from incrowd.drawdiscard.direction import answer_test
from incrowd.drawdiscard.pool import Instance, as_weights
from incrowd.drawdiscard.residual import check_rounding
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.tickets import DIGEST, OtherSpecification, Stranger, Ticket, Tickets, minutes_now
from incrowd.errors import DataError

LIFETIME = 60
"""Minutes from a draw until its answer comes too late."""

_DIGESTED = 1024
"""Bytes of an answer that its digest is of: with noise in them, or a mark beside them, no two answers share them."""


class Reason(StrEnum):
    """What became of an answer: a name for programs, a sentence for people."""

    ACCEPTED = "it is in the pool"
    REPEATED = "it was accepted before, and counts once"
    OTHER_SPECIFICATION = "it answers another specification than this server's"
    NOT_WEIGHTS = "it is not one finite number for each weight of the model"
    FORGED = "its ticket was not issued by this server"
    LATE = "what it was drawn from is too old: draw again"
    UNLIKE = "hardly an honest device would have sent it"
    NOT_ADMITTED = "it shows no admission token of this server's operator"
    DAY_OVER = "its account's contributions of this day were accepted already: the same answer waits for the next"


class Visit(NamedTuple):
    """An account on a day: a keyed digest of both, and how many of its answers may be accepted on that day."""

    day: str
    account: bytes
    most: int


class Drawn(NamedTuple):
    """An instance for a device to update.

    `fingerprint` is that of the specification that it is of, `gamma` the size of the step to take from it, and the
    `ticket` goes back with the answer.
    """

    weights: Instance
    fingerprint: str
    gamma: float
    ticket: bytes


@dataclass(frozen=True, eq=False)
class Returned:
    """An answer that is what it should look like: whether it may enter is the test's to say.

    `visit` says whose it is, where a service admits accounts alone.
    """

    weights: Instance
    ticket: Ticket
    gamma: float
    digest: bytes
    visit: Visit | None = None


class Desk:
    """Hands out instances and looks at answers, for a pool that lies elsewhere.

    `key` is the secret of its tickets: desks of one pool share it. `turned_away` is the share of honest answers that
    the residual test may turn away, `lifetime` how many minutes a device has, `randomness` what is secret of the test.

    Guarantee: an answer that passes `read` and `judge` is one finite number a weight, was drawn here within the
    lifetime, and differs from what was drawn as an honest device's may (see `ResidualTest` and `DirectionTest`).
    Nothing is noted of who offers. Of directions two devices' answers may be the same bytes: marks tell them apart (see
    `tickets`).

    Edge cases: noise ``none`` is refused, for there would be nothing to test, and so is noise that float32 cannot show
    (`ConfigError`; see `check_rounding`). One thread at a time may judge.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        key: bytes,
        turned_away: float = 0.01,
        lifetime: int = LIFETIME,
        now: Callable[[], int] = minutes_now,
        randomness: Randomness | None = None,
    ) -> None:
        self.specification = specification
        self.fingerprint = specification.fingerprint
        self.test = answer_test(specification.mechanism, turned_away=turned_away, randomness=randomness)
        check_rounding(specification.mechanism, gamma=specification.gamma)  # it never falls below what can be shown
        self._tickets = Tickets(key, self.fingerprint, lifetime=lifetime, now=now)
        self._size, self._now = specification.size, now
        self._gamma_of = lru_cache(maxsize=1024)(specification.gamma_of)  # a power, asked for twice an answer

    def hand_out(self, version: int, weights: Instance, *, accepted: int) -> Drawn:
        """An instance on its way to a device, when so many answers were accepted."""
        epoch = self.specification.epoch(accepted)
        return Drawn(weights, self.fingerprint, self._gamma_of(epoch), self._tickets.issue(version, epoch))

    def read(self, update: ArrayLike, ticket: bytes) -> Returned | Reason:
        """The answer that was offered, or why it cannot be one."""
        try:
            stated = self._tickets.read(ticket)
        except Stranger:
            return Reason.FORGED
        except OtherSpecification:
            return Reason.OTHER_SPECIFICATION
        try:
            weights = as_weights(update, self._size)
        except DataError:
            return Reason.NOT_WEIGHTS
        # Noise tells answers apart by itself, and a copy with another mark would be a copy.
        mark = stated.mark if self.specification.noise == "direction" else b""
        return Returned(weights, stated, self._gamma_of(stated.epoch), _digest(weights, stated.version, mark))

    def judge(self, answer: Returned, parent: Instance | None) -> Reason | None:
        """Why an answer may not enter, given what it was drawn from; None where it may."""
        if parent is None or answer.ticket.expires < self._now():
            return Reason.LATE
        return None if self.test.accepts(answer.weights, parent, answer.gamma) else Reason.UNLIKE


def _digest(weights: Instance, version: int, mark: bytes) -> bytes:
    """Not of the ticket: a version that is drawn in the next minute comes with another one."""
    digest = blake2b(version.to_bytes(8, "little") + mark, digest_size=DIGEST)
    digest.update(weights.data.cast("B")[:_DIGESTED] if weights.flags.c_contiguous else weights.tobytes()[:_DIGESTED])
    return digest.digest()
