"""Clients who hold nothing, in the place of parties whose data stay with them: what a server builds a model around."""

import numpy as np

from incrowd.data.arrays import from_arrays
from incrowd.data.clients import Clients
from incrowd.data.columns import Columns
from incrowd.data.examples import Examples
from incrowd.data.partition import Partition


def stand_in(examples: Examples, names: tuple[str, ...], *, name: str, columns: Columns | None = None) -> Clients:
    """As many clients as there are names, each of which holds the one made-up example.

    Guarantee: what is built around them knows of the parties their number, their names, and what examples look like.
    """
    places = np.zeros(len(names), np.int64)
    return Clients(
        examples=examples,
        partition=Partition(offsets=np.arange(len(names) + 1), indices=places),
        name=name,
        declared=len(names),
        owners=names,
        names=names,
        table=columns,
    )


def made_up_row(columns: Columns) -> Examples:
    """One example of a table whose features are named: every number is 0, and so is the label."""
    return made_up_array((len(columns.numbers()),), "float32", classes=columns.number_of_classes)


def made_up_array(
    shape: tuple[int, ...], kind: str, *, classes: int | None, scale: float = 1.0, offset: float = 0.0
) -> Examples:
    """One example of arrays: zeros."""
    features = np.zeros((1, *shape), np.dtype(kind))
    labels = np.zeros(1, np.float32 if classes is None else np.int64)
    return from_arrays(features, labels, classes=classes, scale=scale, offset=offset)
