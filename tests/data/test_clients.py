import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.data import Clients, Examples, Partition, Split, sorted_shards
from incrowd.errors import ConfigError, DataError

IMAGES = Examples(features=np.arange(24, dtype=np.uint8).reshape(6, 2, 2), labels=np.arange(6) % 3, classes=3)
PARTITION = Partition.of([[5, 1], [0], [2, 2, 3]])


def test_clients_hold_indices_into_the_shared_examples() -> None:
    data = Clients(examples=IMAGES, partition=PARTITION)
    assert (data.clients, data.sizes.tolist()) == (3, [2, 1, 3])
    assert data.client(0).tolist() == [5, 1]
    assert data.examples.labels[data.client(2)].tolist() == [2, 2, 0]
    assert data.examples.features is IMAGES.features


def test_ten_thousand_clients_of_600_cost_less_than_300_megabytes_beyond_the_images() -> None:
    labels = np.arange(60_000) % 10
    images = Examples(features=np.zeros((60_000, 28, 28), np.uint8), labels=labels, classes=10)
    partition = sorted_shards(labels, clients=10_000, per_client=600, randomness=SeededRandomness(seed=1))
    data = Clients(examples=images, partition=partition)
    assert (data.clients, set(data.sizes.tolist())) == (10_000, {600})
    arrays = (data.partition.offsets, data.partition.indices)
    assert data.nbytes == sum(array.nbytes for array in arrays) < 25e6
    assert all(array.base is None or array.base.nbytes <= array.nbytes for array in arrays), (
        "a view holds more than it shows"
    )
    tensors = data.as_tensors()
    assert tensors.features.data_ptr() == images.features.ctypes.data


def test_tensors_share_the_memory() -> None:
    data = Clients(examples=IMAGES, partition=PARTITION)
    tensors = data.as_tensors()
    for tensor, array in (
        (tensors.features, IMAGES.features),
        (tensors.labels, IMAGES.labels),
        (tensors.offsets, PARTITION.offsets),
        (tensors.indices, PARTITION.indices),
    ):
        assert tensor.data_ptr() == array.ctypes.data
        assert tuple(tensor.shape) == array.shape
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_an_index_beyond_the_examples_names_its_client() -> None:
    with pytest.raises(DataError, match="client 1 holds the index 6: there are 6 examples, give indices from 0 to 5"):
        Clients(examples=IMAGES, partition=Partition.of([[0], [5, 6], [1]]))


def test_test_examples_of_another_kind_are_refused() -> None:
    other = Examples(features=np.zeros((2, 2, 2), np.uint8), labels=np.zeros(2, np.int64), classes=4)
    with pytest.raises(DataError, match="classes is 3 in train and 4 in test"):
        Clients(examples=IMAGES, partition=PARTITION, test=other)


def test_a_split_keeps_its_parts() -> None:
    split = Split(name="pictures", train=IMAGES, test=IMAGES)
    data = Clients.of(split, PARTITION)
    assert (data.name, data.examples, data.test) == ("pictures", IMAGES, IMAGES)


def test_a_description_says_who_holds_the_test_examples() -> None:
    data = Clients(examples=IMAGES, partition=PARTITION, test=IMAGES, name="pictures")
    assert data.describe() == {
        "data": "pictures",
        "clients": 3,
        "test_set": "6 examples, public: held by the server, not by any client",
    }
    assert Clients(examples=IMAGES, partition=PARTITION).describe()["test_set"] == "none"


def test_a_description_is_the_same_for_other_sizes() -> None:
    smaller = Clients(examples=IMAGES, partition=Partition.of([[0], [1], [2]]))
    assert smaller.describe() == Clients(examples=IMAGES, partition=PARTITION).describe()


def test_the_representation_shows_no_data() -> None:
    shown = repr(Clients(examples=IMAGES, partition=PARTITION))
    assert "array" not in shown.replace("name='arrays'", "")


@pytest.mark.slow
def test_importing_the_room_brings_no_heavy_module_along() -> None:
    command = [sys.executable, "-c", "import sys, incrowd.data; print(*sys.modules)"]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert "incrowd.data.clients" in loaded
    assert not loaded & {"torch", "sklearn", "pandas", "pyarrow", "urllib.request", "scipy.stats"}


def test_names_are_public_only_where_they_are_said_to_be() -> None:
    parts = {"north": ([[1.0]], [0]), "south": ([[2.0]], [1])}
    data = Clients.from_partitions(parts, classes=2)
    assert (data.owners, data.names) == (("north", "south"), ())
    assert data.named().names == ("north", "south")
    assert "north" not in repr(data)
    with pytest.raises(ConfigError, match=r"names = .*they are not those of the clients"):
        replace(data, names=("north", "west"))
    with pytest.raises(ConfigError, match="it is to be a folder's"):
        Clients.from_partitions({"a/b": ([[1.0]], [0])}, classes=2).named()
    with pytest.raises(ConfigError, match="owners = None: these clients have no names"):
        replace(data, owners=None).named()
