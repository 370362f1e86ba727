"""Federated data sets: index lists over shared arrays, never copies; ways to divide them among clients; loaders.

>>> from incrowd._random import SeededRandomness
>>> from incrowd.data import Clients, iid, load_digits
>>> digits = load_digits()
>>> data = Clients.of(digits, iid(digits.train.labels, clients=100, randomness=SeededRandomness(seed=1)))
>>> data.clients, len(data.client(0))
(100, 15)
"""

from incrowd.data.clients import Clients, PublicFacts, TestClients
from incrowd.data.columns import Columns, column_of, columns_of
from incrowd.data.examples import Examples, Split, from_arrays, from_dataset, hold_out
from incrowd.data.partition import Partition, by_column, dirichlet, iid, sorted_shards
from incrowd.data.reading import Reading, read_rows
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Text, YesNo
from incrowd.data.sources import load_digits, load_mnist
from incrowd.data.tables import read_features, read_table

__all__ = [
    "Category",
    "Clients",
    "Column",
    "Columns",
    "Date",
    "Examples",
    "Ignored",
    "Number",
    "Partition",
    "PublicFacts",
    "Reading",
    "Split",
    "TestClients",
    "Text",
    "YesNo",
    "by_column",
    "column_of",
    "columns_of",
    "dirichlet",
    "from_arrays",
    "from_dataset",
    "hold_out",
    "iid",
    "load_digits",
    "load_mnist",
    "read_features",
    "read_rows",
    "read_table",
    "sorted_shards",
]
