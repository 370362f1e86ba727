from pathlib import Path

import numpy as np
import pytest

from incrowd.drawdiscard.outbox import Outbox

PRINT, OTHER = "ab" * 32, "cd" * 32
UPDATE = np.array([1.5, -2.25, 1e-300])


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "phone.outbox")


def test_an_answer_waits_until_it_has_arrived(outbox: Outbox) -> None:
    assert outbox.waiting(PRINT) is None
    outbox.clear()
    outbox.keep(PRINT, UPDATE)
    found = outbox.waiting(PRINT)
    assert found is not None
    assert found.tolist() == UPDATE.tolist()
    assert outbox.path is not None
    assert outbox.path.stat().st_mode & 0o777 == 0o600
    outbox.clear()
    assert outbox.waiting(PRINT) is None


def test_an_answer_to_another_specification_counts_as_none(outbox: Outbox) -> None:
    outbox.keep(OTHER, UPDATE)
    assert outbox.waiting(PRINT) is None


@pytest.mark.parametrize("damage", [slice(0, 0), slice(0, 32), slice(0, 35), slice(5, None)])
def test_a_damaged_file_counts_as_none(outbox: Outbox, damage: slice) -> None:
    outbox.keep(PRINT, UPDATE)
    assert outbox.path is not None
    outbox.path.write_bytes(outbox.path.read_bytes()[damage])
    assert outbox.waiting(PRINT) is None
    outbox.keep(PRINT, np.array([np.nan]))
    assert outbox.waiting(PRINT) is None


def test_without_a_place_nothing_is_kept() -> None:
    nowhere = Outbox(None)
    nowhere.keep(PRINT, UPDATE)
    assert nowhere.waiting(PRINT) is None
    nowhere.clear()
