"""Clients who do not train: their examples are what the server measures on."""

from dataclasses import replace

import numpy as np

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.data.clients import Clients
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
    owners = None if data.owners is None else tuple(data.owners[client] for client in kept)
    return replace(
        data,
        partition=Partition.of([data.client(int(client)) for client in kept]),
        test=data.examples.some(np.sort(np.concatenate([data.client(int(client)) for client in held]))),
        owners=owners,
        names=owners if owners and data.names else (),
    )
