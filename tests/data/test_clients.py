from dataclasses import replace

import numpy as np
import pytest

from incrowd.data import Clients, Examples, Partition
from incrowd.errors import ConfigError, DataError

IMAGES = Examples(features=np.arange(24, dtype=np.uint8).reshape(6, 2, 2), labels=np.arange(6) % 3, classes=3)
PARTITION = Partition.of([[5, 1], [0], [2, 2, 3]])


def test_an_index_beyond_the_examples_names_its_client() -> None:
    with pytest.raises(DataError, match="client 1 holds the index 6: there are 6 examples, give indices from 0 to 5"):
        Clients(examples=IMAGES, partition=Partition.of([[0], [5, 6], [1]]))


def test_test_examples_of_another_kind_are_refused() -> None:
    other = Examples(features=np.zeros((2, 2, 2), np.uint8), labels=np.zeros(2, np.int64), classes=4)
    with pytest.raises(DataError, match="classes is 3 in train and 4 in test"):
        Clients(examples=IMAGES, partition=PARTITION, test=other)


def test_a_description_says_who_holds_the_test_examples() -> None:
    data = Clients(examples=IMAGES, partition=PARTITION, test=IMAGES, name="pictures")
    assert data.describe() == {
        "data": "pictures",
        "clients": 3,
        "test_set": "6 examples, public: held by the server, not by any client",
    }
    assert Clients(examples=IMAGES, partition=PARTITION).describe()["test_set"] == "none"


def test_the_representation_shows_no_data() -> None:
    shown = repr(Clients(examples=IMAGES, partition=PARTITION))
    assert "array" not in shown.replace("name='arrays'", "")


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
