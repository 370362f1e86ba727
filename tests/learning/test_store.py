import numpy as np
import pytest
import torch

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.data import Clients, from_arrays, iid
from incrowd.learning import ClientTensors
from incrowd.learning.batches import Batches, draw_batches, side_by_side
from incrowd.learning.store import Store
from tests.learning.cohorts import FEATURES, RANDOMNESS, clients

LOCAL = Local(learning_rate=1, batch_size=4)


def drawn(client: int, examples: int) -> Batches:
    return side_by_side([draw_batches(examples, LOCAL, randomness=RANDOMNESS, round=0, client=client)])


@pytest.mark.parametrize("memory", [0, 2**20])
@pytest.mark.parametrize("real", [False, True])
def test_leaving_features_out_loses_nothing(real: bool, memory: int) -> None:
    data = clients(real=real)
    store = Store(data, sparing=True, memory=memory)
    for client in (2, 3, 4, 2, 3, 4):  # made, then kept
        batches = drawn(client, len(data.examples(client)))
        whole, narrow = Store(data, sparing=False).feed([client], batches), store.feed([client], batches)
        assert narrow.columns is not None
        assert narrow.columns.shape[1] == len(store.used_by(client)) < FEATURES
        everything = slice(0, batches.steps * batches.width)
        full = torch.zeros(everything.stop, FEATURES)
        full.index_add_(1, narrow.columns[0], narrow.examples(0, everything))
        assert torch.equal(full, whole.examples(0, everything))
        assert torch.equal(narrow.labels, whole.labels)


def test_tensors_of_federated_data_are_not_copies() -> None:
    examples = from_arrays(
        np.arange(24, dtype=np.uint8).reshape(12, 2), np.arange(12) % 3, classes=3, scale=0.5, offset=1
    )
    partition = iid(examples.labels, clients=4, randomness=SeededRandomness(seed=0))
    data = ClientTensors.of(Clients(examples=examples, partition=partition))
    assert data.features.data_ptr() == examples.features.ctypes.data
    assert np.shares_memory(data.indices, partition.indices)
    assert (data.scale, data.offset, data.clients, data.shape) == (0.5, 1.0, 4, (2,))
    assert np.array_equal(data.examples(2), partition.client(2))


@pytest.mark.parametrize("offset", [0.0, -0.25])
@pytest.mark.parametrize("real", [False, True])
def test_constant_features_are_told_apart_and_lose_nothing(real: bool, offset: float) -> None:
    data = clients(real=real, offset=offset)
    data.features[data.indices[19:49], 3] = 5  # of client 2
    data.features[data.indices[20:48], 4] = 6  # all but its first and last
    data.features[data.indices[[19, 48]], 4] = 5
    store = Store(data, sparing=True, folding=True)
    for client in (2, 3, 2, 3):
        batches = drawn(client, len(data.examples(client)))
        whole, narrow = Store(data, sparing=False).feed([client], batches), store.feed([client], batches)
        assert narrow.columns is not None
        everything = slice(0, batches.steps * batches.width)
        full = torch.zeros(everything.stop, FEATURES)
        full.index_add_(1, narrow.columns[0], narrow.examples(0, everything))
        if client == 2:
            assert narrow.constants is not None
            assert narrow.constants[3] == pytest.approx(5 * data.scale + offset)
        if narrow.constants is not None:
            assert (narrow.constants[narrow.columns[0]] == 0).all()
            full += narrow.constants
        assert torch.allclose(full, whole.examples(0, everything))


@pytest.mark.parametrize("offset", [0.0, -0.25])
@pytest.mark.parametrize("usual", [0, 7])
@pytest.mark.parametrize("memory", [0, 2**20])
def test_rare_features_are_apart_and_nothing_is_lost(memory: int, usual: int, offset: float) -> None:
    data = clients(offset=offset)
    rows = data.indices[19:49]  # of client 2
    data.features[rows, :6] = usual
    data.features[rows[3], 1], data.features[rows[20], 4] = 90, 91
    store = Store(data, sparing=True, folding=True, apart=True, memory=memory)
    for _ in range(2):  # made, then kept or made again
        batches = drawn(2, 30)
        whole, narrow = Store(data, sparing=False).feed([2], batches), store.feed([2], batches)
        assert narrow.rare is not None
        assert narrow.columns is not None
        assert narrow.changing is not None
        assert 4 in narrow.rare.features  # 1 is the first, which stays
        everything = slice(0, batches.steps * batches.width)
        full = torch.zeros(everything.stop, FEATURES)
        full.index_add_(1, narrow.columns[0], narrow.examples(0, everything))
        full += 0 if narrow.constants is None else narrow.constants
        for place, row in enumerate(narrow.rows[0].tolist()):
            for k in range(narrow.rare.begins[row], narrow.rare.begins[row + 1]):
                full[place, narrow.rare.features[narrow.rare.places[k]]] += narrow.rare.values[k]
        assert torch.allclose(full, whole.examples(0, everything), atol=1e-6)
        named = narrow.changing.tolist()
        assert len(set(named)) == len(named)
        assert named[: narrow.columns.shape[1]] == narrow.columns[0].tolist()
        others = [] if narrow.constants is None else narrow.constants.nonzero().view(-1).tolist()
        assert set(named) == {*narrow.columns[0].tolist(), *narrow.rare.features.tolist(), *others}


def test_where_all_is_rare_one_feature_is_left() -> None:
    data = clients(dead=0.0)
    data.features[data.indices[19:49]] = 7
    feed = Store(data, sparing=True, folding=True, apart=True).feed([2], drawn(2, 30))
    assert feed.columns is not None
    assert feed.columns.shape == (1, 1)
    assert feed.rare is None  # nothing differs from what is constant
    data.features[data.indices[19:49:10]] = torch.arange(FEATURES, dtype=torch.uint8) + 100
    feed = Store(data, sparing=True, folding=True, apart=True).feed([2], drawn(2, 30))
    assert feed.columns is not None
    assert feed.rare is not None
    assert feed.columns.tolist() == [[0]]
    assert feed.rare.features.tolist() == list(range(1, FEATURES))
