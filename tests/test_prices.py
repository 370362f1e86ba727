"""The prices that processes of the tests share."""

import math
from pathlib import Path

import pytest

from incrowd.privacy.account import accounting
from tests.prices import SharedPrices

KEY = ("PLD", 1e-4, "ADD_OR_REMOVE_ONE", "epsilon", 1e-5, (("{}", 3),))


@pytest.mark.parametrize("price", [0.1 + 0.2, math.inf, 5e-324])
def test_another_process_reads_exactly_what_was_computed(tmp_path: Path, price: float) -> None:
    one, other = SharedPrices(tmp_path), SharedPrices(tmp_path)
    assert KEY not in other
    one[KEY] = price
    assert KEY in other
    assert other[KEY] == price
    assert (*KEY[:-1], (("{}", 4),)) not in other
    assert len(list(tmp_path.iterdir())) == 1


def test_they_are_in_use() -> None:
    assert type(accounting._computed) is SharedPrices
