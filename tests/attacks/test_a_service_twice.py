"""Attack: an answer that was taken is sent again, later or under another ticket, and counts once more."""

import time

import numpy as np
import pytest

from incrowd import Server
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.kept_pool import REMEMBERED
from tests.drawdiscard.mail import asked, honest

pytest.importorskip("pydantic")

SURE = 1e-9
"""So few honest answers are turned away here."""


@pytest.mark.slow
def test_thousands_of_answers_later_it_still_counts_once() -> None:
    own = Server(asked(instances=2), turned_away=SURE, history=2 * REMEMBERED)
    first = honest(own, seed=0)
    assert own.offer(*first).reason is Reason.ACCEPTED
    for number in range(REMEMBERED + 1):
        assert own.offer(*honest(own, seed=1 + number)).accepted
    assert own.offer(*first).reason is Reason.REPEATED
    assert own.accepted == REMEMBERED + 2


def test_under_the_next_minutes_ticket_it_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Server(asked(instances=1), turned_away=SURE)
    drawn = own.draw()
    later = time.time() + 60
    monkeypatch.setattr("time.time", lambda: later)
    again = own.draw()
    assert np.array_equal(drawn.weights, again.weights)
    assert drawn.ticket != again.ticket, "the control: the same version, another ticket"
    update, _ = honest(own)
    assert own.offer(update, drawn.ticket).reason is Reason.ACCEPTED
    assert own.offer(update, again.ticket).reason is Reason.REPEATED
    assert own.accepted == 1


def test_another_answer_to_the_same_version_counts() -> None:
    """The control: what tells answers apart is what is in them."""
    own = Server(asked(instances=1), turned_away=SURE)
    drawn = own.draw()
    updates = [honest(own, seed=number)[0] for number in range(3)]
    assert [own.offer(update, drawn.ticket).reason for update in updates] == [Reason.ACCEPTED] * 3
