"""What a client or a record contributes is its own, bit for bit, whatever module, inputs and labels there are."""

import numpy as np
import pytest
import torch

from incrowd import Local
from incrowd._random import Floats
from incrowd.learning import CohortEngine, Execution
from incrowd.learning.contributions import Shortening
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.settings import Descent
from tests.learning.cohorts import RANDOMNESS, trained
from tests.learning.dpsgd.cases import one_of, training
from tests.learning.own_models import CASES

ONE, SIZE = 2, 13
COMPANIES = ((0, 0, SIZE, 0, 0), (1, 30, SIZE, 4, 8), (SIZE, SIZE, SIZE, SIZE, SIZE), (64, 1, SIZE, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_contribution_has_the_same_bits_in_every_company(name: str) -> None:
    case = CASES[name]
    model, local = case.model(), Local(learning_rate=0.5, batch_size=4, epochs=3)
    found: list[Floats] = []
    for seed, sizes in enumerate(COMPANIES):
        seeds = [seed] * len(sizes)
        seeds[ONE] = 0
        data = case.clients(sizes, seeds)
        there = [k for k, size in enumerate(sizes) if size]
        for cohort in ([ONE], there, there[::-1]):
            engine = CohortEngine(model, data, local, Execution(chunk=2 if seed == 1 else None), loss=case.loss)
            found.append(trained(engine, model.weights, cohort)[ONE])
    assert np.abs(found[0]).max() > 0
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("name", ["GRU on tokens", "transformer, inputs by name", "tuned", "dropout"])
def test_processes_change_no_bit_of_a_sum(name: str) -> None:
    case = CASES[name]
    model, local = case.model(), Local(learning_rate=0.5, batch_size=4)
    data, how = case.clients((5, 9, 1, 12)), Shortening(bound=1.0, parts=None, factors=FixedClip(clip_norm=1.0).factors)
    one, two = (
        CohortEngine(model, data, local, Execution(threads=several), loss=case.loss)
        .train_and_sum(model.weights, range(4), how, randomness=RANDOMNESS, round=0)
        .total
        for several in (1, 2)
    )
    assert np.array_equal(one, two)


@pytest.mark.parametrize("name", [name for name in CASES if name != "dropout"])
def test_a_record_s_clipped_gradient_has_the_same_bits_in_every_batch(name: str) -> None:
    case = CASES[name]
    model, records = case.model(), case.records(20)
    ways = BatchedRecords(model, records, Descent(learning_rate=1.0), loss=case.loss)._selection
    found = []
    for batch in ([0], [3, 0], [0, 1, 2, 3], list(range(19, -1, -1))):
        gradients = ways.gradients(model.weights, training(physical_batch=20))
        found.append(one_of(gradients, records, batch, 0))
    assert found[0][0] > 0
    assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)
