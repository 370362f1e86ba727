"""Honest devices without a table: what they send is what they drew and noise."""

import numpy as np

from incrowd.drawdiscard.desk import Desk, Returned
from incrowd.drawdiscard.pool import Instance
from incrowd.service.store import HandedOut, PoolStore


def honest(desk: Desk, row: Instance, gamma: float, *, seed: int) -> Instance:
    """A contribution of noise alone."""
    noise = np.random.Generator(np.random.SFC64(seed)).laplace(size=row.size)
    return (row - gamma * desk.specification.mechanism.noise_scale * noise).astype(np.float32)


def answered(store: PoolStore, handed: HandedOut, *, seed: int) -> Returned:
    """What comes back of an instance that was handed out."""
    version, row, accepted = handed
    drawn = store.desk.hand_out(version, row, accepted=accepted)
    answer = store.desk.read(honest(store.desk, row, drawn.gamma, seed=seed), drawn.ticket)
    assert isinstance(answer, Returned)
    return answer
