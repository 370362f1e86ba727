import numpy as np
import pytest
import torch

from incrowd._random import SeededRandomness
from incrowd.data import FederatedData, from_arrays, iid
from incrowd.errors import DataError
from incrowd.learning import ClientTensors, LocalTraining
from incrowd.learning.batches import draw, side_by_side
from incrowd.learning.store import Store
from tests.learning.cohorts import FEATURES, RANDOMNESS, clients

LOCAL = LocalTraining(learning_rate=1, batch_size=4)


@pytest.mark.parametrize("memory", [0, 2**20])
@pytest.mark.parametrize("real", [False, True])
def test_leaving_features_out_loses_nothing(real: bool, memory: int) -> None:
    data, group = clients(real=real), [2, 3, 4]
    batches = side_by_side(
        [draw(len(data.examples(k)), LOCAL, randomness=RANDOMNESS, round=0, client=k) for k in group]
    )
    whole = Store(data, narrow=False).feed(group, batches)
    store = Store(data, narrow=True, memory=memory)
    for _ in range(2):  # made, then kept
        narrow = store.feed(group, batches)
        assert narrow.columns is not None
        assert narrow.columns.shape[1] == max(map(store.extent, group)) < FEATURES
        everything = slice(0, batches.steps * batches.width)
        full = torch.zeros(3, everything.stop, FEATURES)
        for j, columns in enumerate(narrow.columns):
            full[j].index_add_(1, columns, narrow.examples(slice(None), everything)[j])
        assert torch.equal(full, whole.examples(slice(None), everything))
        assert torch.equal(narrow.labels, whole.labels)


@pytest.mark.parametrize(("dead", "offset"), [(0.0, 0.0), (0.5, 0.25)])
def test_features_stay_when_it_does_not_pay_or_when_zero_means_something(dead: float, offset: float) -> None:
    data = clients(dead=dead, offset=offset)
    batches = side_by_side([draw(12, LOCAL, randomness=RANDOMNESS, round=0, client=0)])
    assert Store(data, narrow=True).feed([0], batches).columns is None


def test_full_batches_need_no_weights() -> None:
    data = clients([8, 6])
    feeds = [
        Store(data, narrow=False).feed([k], side_by_side([draw(n, LOCAL, randomness=RANDOMNESS, round=0, client=k)]))
        for k, n in enumerate((8, 6))
    ]
    assert feeds[0].weights is None
    assert feeds[1].weights is not None
    assert feeds[1].weights.ravel().tolist() == [1, 1, 1, 1, 2, 2, 0, 0]


def test_tensors_of_federated_data_are_not_copies() -> None:
    examples = from_arrays(
        np.arange(24, dtype=np.uint8).reshape(12, 2), np.arange(12) % 3, classes=3, scale=0.5, offset=1
    )
    partition = iid(examples.labels, clients=4, randomness=SeededRandomness(seed=0))
    data = ClientTensors.of(FederatedData(examples=examples, partition=partition))
    assert data.features.data_ptr() == examples.features.ctypes.data
    assert np.shares_memory(data.indices, partition.indices)
    assert (data.scale, data.offset, data.clients, data.shape) == (0.5, 1.0, 4, (2,))
    assert np.array_equal(data.examples(2), partition.client(2))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3), "float64"),
        (torch.zeros(2, 3).t(), torch.zeros(3), "contiguous"),
        (torch.zeros(3), torch.zeros(3), r"give \[examples, ...\]"),
        (torch.zeros(3, 2), torch.zeros(2), r"labels \(2,\)"),
    ],
)
def test_tensors_of_another_kind_are_refused(features: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ClientTensors(features=features, labels=labels, offsets=np.array([0, 3]), indices=np.arange(3))


def test_among_dense_features_nobody_looks_for_unused_ones() -> None:
    data = clients(real=True, dead=0.0)
    assert not Store(data, narrow=True).narrow
    assert Store(clients(real=True, dead=0.5), narrow=True).narrow


def test_floats_are_handed_out_as_they_are_and_overwritten_by_the_next() -> None:
    data = clients([6], real=True, dead=0.0)
    feed = Store(data, narrow=False).feed([0], side_by_side([draw(6, LOCAL, randomness=RANDOMNESS, round=0, client=0)]))
    before = data.features.clone()
    feed.examples(0, slice(0, 2)).zero_()
    assert torch.equal(data.features, before)
