"""Honest devices without a table: what they send is what they drew and noise."""

from incrowd.drawdiscard.desk import Returned
from incrowd.service.store import HandedOut, PoolStore
from tests.drawdiscard.mail import noised


def answered(store: PoolStore, handed: HandedOut, *, seed: int) -> Returned:
    """What comes back of an instance that was handed out."""
    version, row, accepted = handed
    drawn = store.desk.hand_out(version, row, accepted=accepted)
    answer = store.desk.read(noised(store.desk.specification, row, drawn.gamma, seed=seed), drawn.ticket)
    assert isinstance(answer, Returned)
    return answer
