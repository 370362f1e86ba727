"""Whether matrix products leave a record's numbers alone wherever it stands."""

from functools import partial

import pytest
import torch
from torch import Tensor

from incrowd.learning.gradients import ghost

SHAPES = ((7, 33, True), (33, 3, False))


def test_a_product_that_rounds_some_rows_in_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = partial(ghost.rows_are_alike.__wrapped__, SHAPES, 64, "cpu", 1)
    assert alike()
    product = torch.mm

    def by_place(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        product(left, right, out=out)
        out[1::2] *= 1 + 2.0**-23
        return out

    monkeypatch.setattr(torch, "mm", by_place)
    assert not alike()
