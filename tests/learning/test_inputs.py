import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.data import Clients, from_arrays, iid
from incrowd.errors import DataError
from incrowd.learning import ClientTensors
from incrowd.learning.inputs import Batches, draw_batches

RANDOMNESS = SeededRandomness(seed=1)
BATCHINGS = st.one_of(
    st.builds(lambda n: {"batch_size": n}, st.integers(1, 40)),
    st.builds(lambda n: {"batches": n}, st.integers(1, 40)),
    st.just({}),
)


def drawn(
    examples: int, *, epochs: int = 1, shuffle: int = True, round: int = 0, client: int = 0, **batching: int
) -> Batches:
    local = Local(learning_rate=1, epochs=epochs, shuffle=bool(shuffle), **batching)  # type: ignore[arg-type]  # all are counts
    return draw_batches(examples, local, randomness=RANDOMNESS, round=round, client=client)


@given(examples=st.integers(1, 90), epochs=st.integers(1, 3), shuffle=st.booleans(), batching=BATCHINGS)
def test_every_example_comes_once_in_every_epoch(
    examples: int, epochs: int, shuffle: bool, batching: dict[str, int]
) -> None:
    found = drawn(examples, epochs=epochs, shuffle=shuffle, **batching)
    for epoch in range(epochs):
        steps = range(found.steps // epochs * epoch, found.steps // epochs * (epoch + 1))
        seen = [found.positions[t, : found.sizes[t]] for t in steps]
        assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(examples))


def test_epochs_rounds_and_clients_have_orders_of_their_own() -> None:
    two = drawn(50, epochs=2, batch_size=25)
    assert not np.array_equal(two.positions[:2], two.positions[2:])
    for other in ({"client": 1}, {"round": 1}):
        assert not np.array_equal(two.positions, drawn(50, epochs=2, batch_size=25, **other).positions)


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


def test_labels_are_as_many_as_examples() -> None:
    with pytest.raises(
        DataError, match=r"shape \(3, 2\) and labels \(2,\): give \[examples, ...\] and a label for each"
    ):
        ClientTensors(features=torch.zeros(3, 2), labels=torch.zeros(2), offsets=np.array([0, 3]), indices=np.arange(3))
