from dataclasses import replace

import numpy as np

from incrowd import ServerOptimizer
from incrowd._random import Floats
from incrowd.data import Split
from incrowd.learning.features import UnitNorm
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import Plan
from papers.geyer.measure import PER_CLIENT, ROWS, curve, learn, partitioned
from papers.geyer.setup import Setup

CLIENTS, ROUNDS, RATE = 20, 4, 8.0
SETUP = Setup(features=UnitNorm(), rounds=ROUNDS, server=ServerOptimizer(learning_rate=RATE, decay="linear"))
NO_NOISE = Budget(epsilon=1e6, delta=1e-3)  # so much that the least noise suffices


def released(setup: Setup, plan: Plan, split: Split, *, seed: int) -> Floats:
    """The weights at the end."""
    *_, (last, _) = learn(setup, plan, split, seed=seed)
    return last.published


def twin(split: Split, *, seed: int) -> Floats:
    """The weights of the federation without noise, client by client: the gradient of all examples, at norm 1."""
    data = partitioned(split, clients=CLIENTS, seed=seed)
    weights = np.zeros((10, 784))
    for number in range(ROUNDS):
        total = np.zeros_like(weights)
        for client in range(CLIENTS):
            x = split.train.values(data.client(client)).astype(np.float64)
            likelihoods = np.exp(x @ weights.T)
            errors = (
                likelihoods / likelihoods.sum(axis=1, keepdims=True)
                - np.eye(10)[data.examples.labels[data.client(client)]]
            )
            gradient = errors.T @ x
            total -= gradient / np.linalg.norm(gradient)
        weights += RATE * (1 - number / ROUNDS) * total / CLIENTS
    return weights


def test_the_rows_are_the_paper_s() -> None:
    assert {row.clients: (row.delta, row.accuracy, row.rounds, row.communications) for row in ROWS.values()} == {
        100: (1e-3, 0.78, 11, 550),
        1000: (1e-5, 0.92, 54, 11_880),
        10_000: (1e-6, 0.96, 412, 209_500),
    }


def test_every_client_has_two_shards_of_one_label(split: Split) -> None:
    data = partitioned(split, clients=CLIENTS, seed=3)
    for client in range(CLIENTS):
        labels = data.examples.labels[data.client(client)]
        assert labels.size == PER_CLIENT
        assert all(len(set(shard)) == 1 for shard in labels.reshape(2, -1))
    assert not np.array_equal(data.client(0), partitioned(split, clients=CLIENTS, seed=4).client(0))


def test_without_noise_it_is_plain_normalised_descent(split: Split) -> None:
    seen = SETUP.prepared(split)
    plan = SETUP.plan(CLIENTS).calibrate(NO_NOISE)
    assert plan.noise_multiplier < 0.02
    found = released(SETUP, plan, seen, seed=5).reshape(10, 784)
    expected = twin(seen, seed=5)
    noise = RATE * plan.noise_multiplier / CLIENTS  # of each weight, at most, in each round
    assert np.abs(found - expected).max() < 5 * noise * ROUNDS**0.5
    assert np.abs(expected).max() > 25 * noise  # so a missing round or another rate would be seen
    slower = replace(SETUP, server=SETUP.server.replaced(learning_rate=RATE / 2))
    other = released(slower, plan, seen, seed=5).reshape(10, 784)
    assert np.abs(other - expected).max() > 5 * noise * ROUNDS**0.5


def test_a_curve_has_every_so_many_rounds_and_the_last(split: Split) -> None:
    seen = SETUP.prepared(split)
    plan = SETUP.plan(CLIENTS).calibrate(NO_NOISE)
    full = curve(SETUP, plan, seen, seed=1)
    assert [point.round for point in full] == [1, 2, 3, 4]
    assert curve(SETUP, plan, seen, seed=1, every=3) == [full[2], full[3]]
    assert len({point.accuracy for point in full}) > 1
