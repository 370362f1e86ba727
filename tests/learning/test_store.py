import numpy as np

from incrowd._random import SeededRandomness
from incrowd.data import Clients, from_arrays, iid
from incrowd.learning import ClientTensors


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
