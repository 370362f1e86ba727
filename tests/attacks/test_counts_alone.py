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
from incrowd.federated.counter import Counter
from incrowd.federated.silo import Silo
from incrowd.learning import Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records
from incrowd.privacy.plan.silo_plan import COUNTED
from incrowd.settings.descent import Descent
from tests.federated.silos import account, plan

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

    def _said(self, weights: Floats) -> Tensor:
        with torch.no_grad():
            said: Tensor = self.model.with_weights(weights)(self.records.features).argmax(1)
        return said


def released(count: int, weights: Floats, *, kind: type[Counter] = Counter) -> tuple[Floats, Floats]:
    """The two counts of a round and the table at the end, whose noise a seed repeats."""
    held = records(count)
    its = plan(records=SIXTEEN, batch_size=SIXTEEN, count_std=20.0, report_std=20.0)
    engine = BatchedRecords(MODEL, held, Descent(learning_rate=0.5))
    silo = Silo(its, account(), engine=engine, counter=kind(model=MODEL, records=held))
    answer, table = silo.answer(0, weights), silo.report(weights, classes=2)
    assert answer.records is not None
    assert answer.right is not None
    assert table is not None
    return np.array([answer.records, answer.right]), table


def moved(weights: Floats, *, kind: type[Counter] = Counter) -> tuple[float, float]:
    """By how much one record moves them (L2)."""
    pairs = zip(*(released(count, weights, kind=kind) for count in (SIXTEEN - 1, SIXTEEN)), strict=True)
    counts, table = (float(np.linalg.norm(with_it - without)) for without, with_it in pairs)
    return counts, table


def test_one_record_moves_counts_and_table_by_what_is_priced() -> None:
    counts, table = moved(between())
    assert counts <= COUNTED * (1 + 1e-4)
    assert table <= 1 + 1e-4


def test_control_in_a_batch_it_moved_fifteen_others() -> None:
    counts, table = moved(between(), kind=Batched)
    assert counts > 10
    assert table > 10


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
    counted = [Counter(model=model, records=records(count)).count(np.zeros(4)) for count in (7, 8)]
    assert counted == [(7, 7), (8, 8)]
