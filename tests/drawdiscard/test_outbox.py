from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from incrowd.drawdiscard import Drawn
from incrowd.drawdiscard.device import MOST_WAITING, Outbox, Waiting, stepped
from incrowd.privacy.mechanism.grid import Whole

PRINT, OTHER = "ab" * 32, "cd" * 32
RELEASED = Whole(np.array([3, -(2**52), 0]), 2.0**-31)
DRAWN = Drawn(np.array([1.5, -2.25, 1e-30], np.float32), PRINT, 0.05, b"ticket")
WAITING = Waiting.of(DRAWN, RELEASED)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "phone.outbox")


def equal(first: Waiting | None, second: Waiting | None) -> bool:
    return first is not None and second is not None and first.to_bytes() == second.to_bytes()


def test_an_answer_waits_until_it_has_arrived(outbox: Outbox) -> None:
    assert outbox.waiting(PRINT) is None
    outbox.clear(PRINT)
    outbox.keep(WAITING)
    found = outbox.waiting(PRINT)
    assert found is not None
    assert equal(found, WAITING)
    assert (found.released.steps.tolist(), found.released.step) == (RELEASED.steps.tolist(), RELEASED.step)
    assert found.ticket == b"ticket"
    np.testing.assert_array_equal(found.update, stepped(DRAWN.weights, RELEASED, gamma=0.05))
    assert outbox.path is not None
    (place,) = outbox.path.parent.iterdir()
    assert place.stat().st_mode & 0o777 == 0o600
    outbox.clear(PRINT)
    assert outbox.waiting(PRINT) is None
    assert list(outbox.path.parent.iterdir()) == []


def test_each_specification_has_its_own_and_the_oldest_go_first(outbox: Outbox) -> None:
    prints = [f"{number:064x}" for number in range(MOST_WAITING + 2)]
    for each in prints:
        outbox.keep(replace(WAITING, fingerprint=each))
    assert [outbox.waiting(each) is not None for each in prints] == [False] * 2 + [True] * MOST_WAITING
    outbox.clear(prints[-1])
    assert [outbox.waiting(each) is not None for each in prints[-2:]] == [True, False]


@pytest.mark.parametrize("damage", [slice(0, 0), slice(0, 32), slice(0, -1), slice(5, None)])
def test_a_damaged_file_counts_as_none(outbox: Outbox, damage: slice) -> None:
    outbox.keep(WAITING)
    assert outbox.path is not None
    (place,) = outbox.path.parent.iterdir()
    place.write_bytes(place.read_bytes()[damage])
    assert outbox.waiting(PRINT) is None
    place.write_bytes(replace(WAITING, fingerprint=OTHER).to_bytes())
    assert outbox.waiting(PRINT) is None


def test_without_a_place_it_is_in_memory() -> None:
    memory = Outbox(None)
    memory.keep(WAITING)
    assert equal(memory.waiting(PRINT), WAITING)
    assert memory.waiting(OTHER) is None
    memory.clear(PRINT)
    assert memory.waiting(PRINT) is None
    assert Outbox(None).waiting(PRINT) is None
