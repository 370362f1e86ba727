from dataclasses import replace

import numpy as np
import pytest

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.algorithms import score
from incrowd.data import Split
from incrowd.learning import ClientTensors
from papers.geyer.measure import partitioned
from papers.geyer.plain import Plain, learn_plainly
from tests.reference.one_client import contribution

PLAIN = Plain(rounds=2, clients=4, local=Local(learning_rate=0.1, batches=3))


@pytest.mark.slow
def test_rounds_are_plain_averages_and_the_diagnostics_the_paper_s_formulas(split: Split) -> None:
    model, source = PLAIN.model(split), SeededRandomness(seed=2)
    data = ClientTensors.of(partitioned(split, clients=4, seed=2))
    weights = PLAIN.init_scale * model.initial(source)
    found = list(learn_plainly(PLAIN, split, seed=2))
    assert [one.round for one in found] == [1, 2]
    for number, one in enumerate(found):
        updates = np.stack(
            [
                contribution(model, weights, data, PLAIN.local, randomness=source, round=number, client=client).numpy()
                for client in range(4)
            ]
        ).astype(np.float64)
        expected = weights.numpy() + updates.mean(axis=0)
        np.testing.assert_allclose(one.weights, expected, atol=1e-5)
        assert one.seen.between_client_variance == pytest.approx(updates.var(axis=0).mean(), rel=1e-3)
        assert one.seen.update_scale == pytest.approx((updates.mean(axis=0) ** 2).mean(), rel=1e-3)
        assert split.test is not None
        assert one.accuracy == score(model, one.weights, split.test).accuracy
        weights = model.flat(one.weights)
    assert not np.allclose(found[0].weights, found[1].weights, atol=1e-3)


@pytest.mark.slow
def test_it_learns(split: Split) -> None:
    *_, last = learn_plainly(replace(PLAIN, rounds=12, clients=8), split, seed=1)
    assert last.accuracy > 0.8
