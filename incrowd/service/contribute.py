"""A device's turns at a service, one after the other: what became of each, and what they cost together."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from incrowd import _validate
from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.device import Device
from incrowd.drawdiscard.server import ServerLike
from incrowd.errors import IncrowdError, ServiceFailed

MOST_PATIENCE_S = 60.0
"""A service that asks to wait no longer than this is waited for."""

ATTEMPTS = 3
"""So often a contribution is tried at a service that asks to wait."""


@dataclass
class Turns:
    """What became of a device's contributions: how many answers arrived, and what the service said to them.

    `stopped` is what ended them early, if something did.
    """

    reasons: Counter[Reason] = field(default_factory=Counter)
    stopped: IncrowdError | None = None

    @property
    def sent(self) -> int:
        """How many answers arrived at the service."""
        return self.reasons.total()

    @property
    def accepted(self) -> int:
        """How many of them it took."""
        return self.reasons[Reason.ACCEPTED] + self.reasons[Reason.REPEATED]


def contribute(
    device: Device,
    server: ServerLike,
    *,
    times: int = 1,
    jitter_s: float = 0.0,
    randomness: Randomness | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Turns:
    """Contribute so many times, each after a random wait of at most `jitter_s` seconds.

    Guarantee: an answer of an earlier day that was paid for and did not arrive goes first, and counts as one of the
    times. Whatever stops a contribution stops those that follow, and is told with what became of the others; a service
    that asks to wait at most a minute is waited for, twice.

    Edge cases: the wait is random so that the time of an answer tells nothing of the app that made the example; with
    0 there is none.
    """
    _validate.count(times=times)
    _validate.non_negative(jitter_s=jitter_s)
    stream = (randomness or SystemRandomness()).stream("jitter")
    turns = Turns()
    for _ in range(times):
        if jitter_s:
            sleep(jitter_s * float(stream.bits(1)[0]) / 2.0**64)
        try:
            turns.reasons[_patiently(device, server, sleep)] += 1
        except IncrowdError as error:
            turns.stopped = error
            break
    return turns


def _patiently(device: Device, server: ServerLike, sleep: Callable[[float], object]) -> Reason:
    """What became of one contribution, waiting for the service where it asks to."""
    for _ in range(ATTEMPTS - 1):
        try:
            return device.contribute(server).reason
        except ServiceFailed as error:
            wait = error.retry_after
            if wait is None or wait > MOST_PATIENCE_S:
                raise
            sleep(wait)
    return device.contribute(server).reason
