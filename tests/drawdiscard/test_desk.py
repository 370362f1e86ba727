from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from incrowd.drawdiscard.desk import Desk, Reason, Returned
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.specification import least_gamma
from incrowd.errors import ConfigError
from tests.drawdiscard.mail import asked, noised

KEY = bytes(range(32))
PARENT: Instance = np.array([0.5, -0.25, 1.0, 0.0], np.float32)


class Clock:
    minute = 100

    def __call__(self) -> int:
        return self.minute


def desk_of(now: Callable[[], int] | None = None, **changes: Any) -> Desk:
    return Desk(asked(**changes), key=KEY, turned_away=1e-6, lifetime=5, now=now or Clock())


def test_an_honest_answer_passes_within_its_lifetime() -> None:
    clock = Clock()
    desk = desk_of(clock)
    drawn = desk.hand_out(7, PARENT, accepted=0)
    assert (drawn.fingerprint, drawn.gamma) == (asked().fingerprint, asked().gamma)
    answer = desk.read(noised(asked(), PARENT, drawn.gamma, seed=1), drawn.ticket)
    assert isinstance(answer, Returned)
    assert answer.ticket.version == 7
    clock.minute += 5
    assert desk.judge(answer, PARENT) is None
    assert desk.judge(answer, None) is Reason.LATE
    assert desk.judge(answer, PARENT + 50) is Reason.UNLIKE
    clock.minute += 1
    assert desk.judge(answer, PARENT) is Reason.LATE


def test_an_answer_is_judged_by_the_step_size_of_its_draw() -> None:
    """Otherwise the answers under way would be turned away whenever the step size falls."""
    desk = desk_of(falls_every=10, falls_by=1.0)
    steps = [desk.hand_out(1, PARENT, accepted=accepted).gamma for accepted in (0, 9, 10, 25)]
    assert steps == [0.05, 0.05, 0.025, pytest.approx(0.05 / 3)]
    early, late = (desk.hand_out(1, PARENT, accepted=accepted) for accepted in (0, 10**12))
    assert late.gamma == pytest.approx(least_gamma(desk.specification.mechanism))
    for sent in (early, late):
        right, wrong = (
            desk.read(noised(asked(), PARENT, gamma, seed=1), sent.ticket) for gamma in (sent.gamma, 100 * sent.gamma)
        )
        assert isinstance(right, Returned)
        assert isinstance(wrong, Returned)
        assert desk.judge(right, PARENT) is None
        assert desk.judge(wrong, PARENT) is Reason.UNLIKE


@pytest.mark.parametrize(
    ("changes", "field"), [({"noise": "none"}, "noise"), ({"gamma": 1e290}, "gamma"), ({"gamma": 1e-290}, "gamma")]
)
def test_what_no_test_can_guard_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        desk_of(**changes)
