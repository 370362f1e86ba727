"""Clients who do not train: their examples are what the server measures on."""

from dataclasses import replace

import numpy as np

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.data.clients import Clients
from incrowd.data.examples import Examples
from incrowd.data.partition import Partition
from incrowd.errors import ConfigError


def hold_out_clients(data: Clients, *, share: float, randomness: Randomness) -> Clients:
    """Put a share of the clients, chosen at random, aside: all their examples become the test set.

    Whoever does this declares these clients public, and how many there are.

    Guarantee: no client is on both sides; the others keep their order, and their examples are not copied.

    Edge cases: a test set that is there already, or a share that leaves nobody to train: `ConfigError`.
    """
    _validate.fraction(holdout_clients=share)
    aside = max(1, round(share * data.present))
    if data.test is not None or aside >= data.present:
        remedy = "leave at least one client to train, and no other test set"
        raise ConfigError(field="holdout_clients", value=share, remedy=remedy)
    order = np.argsort(randomness.stream("hold out").bits(data.present), kind="stable")
    held, kept = np.sort(order[:aside]), np.sort(order[aside:])
    return replace(
        data,
        partition=Partition.of([data.client(int(client)) for client in kept]),
        test=_rows(data.examples, np.sort(np.concatenate([data.client(int(client)) for client in held]))),
        names=tuple(data.names[client] for client in kept) if data.names else (),
    )


def _rows(examples: Examples, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Examples:
    return replace(examples, features=examples.features[rows], labels=examples.labels[rows])
