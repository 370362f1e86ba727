"""Federated data sets: index lists over shared arrays, never copies; ways to divide them among clients; loaders.

>>> from incrowd._random import SeededRandomness
>>> from incrowd.data import Clients, iid, load_digits
>>> digits = load_digits()
>>> data = Clients.of(digits, iid(digits.train.labels, clients=100, randomness=SeededRandomness(seed=1)))
>>> data.clients, len(data.client(0))
(100, 15)
"""

from incrowd.data._cells import Reading
from incrowd.data.arrays import MapDataset, from_arrays, from_dataset
from incrowd.data.clients import Clients, PublicFacts, Tensors, TestClients
from incrowd.data.columns import Columns
from incrowd.data.digits import load_digits
from incrowd.data.download import DownloadSource
from incrowd.data.examples import Examples, Split, hold_out
from incrowd.data.held_out import hold_out_clients
from incrowd.data.mnist import MNIST, download_mnist, load_mnist
from incrowd.data.partition import Partition
from incrowd.data.partitioners import by_column, by_sizes, dirichlet, iid, lognormal_sizes, sorted_shards
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Text, YesNo
from incrowd.data.spelling import column_of, columns_of
from incrowd.data.tables import load_table, read_features, read_table
from incrowd.data.texts import Texts, load_texts

__all__ = [
    "MNIST",
    "Category",
    "Clients",
    "Column",
    "Columns",
    "Date",
    "DownloadSource",
    "Examples",
    "Ignored",
    "MapDataset",
    "Number",
    "Partition",
    "PublicFacts",
    "Reading",
    "Split",
    "Tensors",
    "TestClients",
    "Text",
    "Texts",
    "YesNo",
    "by_column",
    "by_sizes",
    "column_of",
    "columns_of",
    "dirichlet",
    "download_mnist",
    "from_arrays",
    "from_dataset",
    "hold_out",
    "hold_out_clients",
    "iid",
    "load_digits",
    "load_mnist",
    "load_table",
    "load_texts",
    "lognormal_sizes",
    "read_features",
    "read_table",
    "sorted_shards",
]
