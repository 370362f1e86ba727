"""Attack: a batch is rounded by how many are in it, so one record more moved what was counted of fifteen others.

The server chooses weights for which the vector and the scalar code of a processor give SiLU another last bit, and a
threshold between the two: all records of one value change sides together.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.algorithms.counts import Counter
from incrowd.algorithms.silos import Silo
from incrowd.learning import Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records
from incrowd.settings import Descent
from tests.algorithms.silos import paying, plan

pytestmark = pytest.mark.usefixtures("one_thread")

SIXTEEN = 16  # of float32, in a processor's vector
MODEL = Model(nn.Sequential(nn.Linear(1, 1), nn.SiLU(), nn.Linear(1, 2)), fresh=True)


def records(count: int) -> Records:
    return Records(features=torch.ones(count, 1), labels=torch.ones(count, dtype=torch.int64))


def between() -> Floats:
    """Weights whose first class gets the smaller of the two roundings, the second one the one that it comes to."""
    for scale in torch.linspace(-3, 3, 4000):
        whole, part = (nn.functional.silu(scale.expand(count).contiguous())[0] for count in (SIXTEEN, SIXTEEN - 1))
        if whole != part:
            low = float(min(whole, part))
            return np.array([float(scale), 0.0, 0.0, 1.0, low, 0.0])
    pytest.skip("this processor rounds SiLU alike in a vector and outside")


class Batched(Counter):
    """The broken twin: all records in one batch."""

    def _predicted(self, weights: Floats) -> Tensor:
        with torch.no_grad():
            said: Tensor = self.model.with_weights(weights)(self.records.features).argmax(1)
        return said


def released(count: int, weights: Floats, *, kind: type[Counter] = Counter) -> Floats:
    """The table at the end, whose noise a seed repeats."""
    held = records(count)
    engine = BatchedRecords(MODEL, held, Descent(learning_rate=0.5))
    run = paying(plan(records=SIXTEEN, report_std=20.0))
    table = Silo("north", run, engine=engine, counter=kind(model=MODEL, records=held)).report(weights, classes=2)
    assert table is not None
    return table


def moved(weights: Floats, *, kind: type[Counter] = Counter) -> float:
    """By how much one record moves it (L2)."""
    without, with_it = (released(count, weights, kind=kind) for count in (SIXTEEN - 1, SIXTEEN))
    return float(np.linalg.norm(with_it - without))


def test_one_record_moves_the_table_by_what_is_priced() -> None:
    assert moved(between()) <= 1 + 1e-4


def test_control_in_a_batch_it_moved_fifteen_others() -> None:
    assert moved(between(), kind=Batched) > 10


def test_a_record_has_its_answer_in_every_company_and_place() -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = Records(
        features=torch.randn(70, 7, generator=generator), labels=torch.randint(0, 3, (70,), generator=generator)
    )
    model = Model(nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 3)), fresh=True)
    weights = np.random.default_rng(0).normal(size=model.size)
    whole = Counter(model=model, records=mixed).table(weights, classes=3)
    for left_out in range(0, 70, 9):
        others = torch.cat([torch.arange(left_out), torch.arange(left_out + 1, 70)]).flip(0)
        fewer = replace(mixed, features=mixed.features[others], labels=mixed.labels[others])
        assert np.linalg.norm(whole - Counter(model=model, records=fewer).table(weights, classes=3)) == 1


class Counting(nn.Module):
    """A model of one's own that remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(1, 2), 0

    def forward(self, examples: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layer(examples) + torch.tensor([0.0, 1e3 * (self.calls % 2)])
        return outputs


def test_a_model_that_remembers_gets_a_copy_for_every_record() -> None:
    model = Model(Counting())
    counted = [Counter(model=model, records=records(count)).table(np.zeros(4), classes=2)[1, 1] for count in (7, 8)]
    assert counted == [7, 8]
