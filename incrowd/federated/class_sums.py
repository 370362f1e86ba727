"""A model in one round: the clients add up their examples class by class, and new ones go to the nearest mean.

The cheapest thing that a federation can learn: one contribution from each client, no training. It needs features in
which a class is one cloud (see the feature maps of `incrowd.learning`).
"""

import math

import numpy as np

from incrowd._random import Floats
from incrowd.data import Clients
from incrowd.errors import DataError
from incrowd.privacy.release import PrivateRun

CONSTANT = 0.3
"""A feature that every example has, through which the classes are counted."""


def size_of(data: Clients) -> int:
    """How many numbers a contribution has: for every class its features and their count."""
    return _classes(data) * (math.prod(data.examples.shape) + 1)


def class_sums(data: Clients, private: PrivateRun, *, number: int = 0) -> tuple[Floats, float]:
    """Ask a round's cohort for the means of its examples, class by class, in one private release.

    Returns the sums over all clients' means, [classes, features + 1], noised, and the noise's standard deviation.

    Guarantee: a client's contribution is the mean over its examples, so it says how they are and not how many.

    Edge cases: a plan for another number of clients than the data's is refused; clients that are declared, drawn and
    not there contribute nothing.
    """
    private.check_clients(clients=data.clients, declared=data.declared is not None)
    asked = private.round(number)
    cohort = private.cohort(number)
    for client in cohort[cohort < data.present]:
        asked.add(class_means(data, int(client)).ravel(), clients=[int(client)])
    released = asked.release()
    expected = private.plan.round(number).sampler.expected_cohort
    return released.mean.reshape(_classes(data), -1) * expected, released.noise_std


def class_means(data: Clients, client: int) -> Floats:
    """What a client contributes, [classes, features + 1]: of each class the sum of its examples, over all of them.

    Guarantee: a function of the client's own examples alone, bit for bit.
    """
    rows = data.client(client)
    values = data.examples.values(rows).reshape(len(rows), -1).astype(np.float64)
    values = np.hstack([values, np.full((len(rows), 1), CONSTANT)])
    means = np.zeros((_classes(data), values.shape[1]))
    np.add.at(means, data.examples.labels[rows].astype(np.int64), values / len(rows))
    return means


def nearest_mean(sums: Floats, noise_std: float) -> Floats:
    """The weights of a linear model (outputs by features, then biases) that picks the class with the nearest mean.

    A class's squared length is estimated without the part that the noise adds to it on average.

    Edge cases: a class whose noised count is not positive is never picked.
    """
    counts = sums[:, -1] / CONSTANT
    seen = counts > 0
    scale = np.where(seen, counts, 1.0)[:, None]
    means = np.where(seen[:, None], sums[:, :-1] / scale, 0.0)
    added = means.shape[1] * (noise_std / scale[:, 0]) ** 2
    biases = np.where(seen, -np.maximum((means**2).sum(axis=1) - added, 0.0) / 2, -1e6)
    return np.concatenate([means.ravel(), biases])


def _classes(data: Clients) -> int:
    if data.examples.classes is None:
        raise DataError("the labels are numbers, not classes: there are no class means to ask for")
    if data.examples.labels.ndim != 1:
        raise DataError("the labels are those of sequences: there are no class means to ask for")
    return data.examples.classes
