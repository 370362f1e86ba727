from dataclasses import replace

import numpy as np
import pytest

from incrowd import ServerOptimizer
from incrowd._random import Floats, SeededRandomness
from incrowd.data import Split
from incrowd.errors import DataError
from incrowd.learning.features import UnitNorm
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import Plan
from papers.geyer.measure import PER_CLIENT, ROWS, curve, learn, measure, partitioned, shaped
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


def test_seeds_redraw_everything_and_repeat_themselves(split: Split) -> None:
    seen = SETUP.prepared(split)
    budget = Budget(epsilon=8, delta=1e-3)
    lines: list[str] = []
    found = measure(SETUP, seen, clients=CLIENTS, budget=budget, seeds=[1, 2], say=lines.append)
    again = measure(SETUP, seen, clients=CLIENTS, budget=budget, seeds=[2])
    assert found.accuracies[0] != found.accuracies[1] == again.accuracies[0]
    assert found.accuracy == pytest.approx(np.mean(found.accuracies))
    assert found.spread == pytest.approx(np.std(found.accuracies, ddof=1))
    assert again.spread is None
    assert found.weights == 7840
    assert found.plan.price.epsilon <= 8
    assert len(lines) == 2


def test_fresh_weights_are_a_start_too(split: Split) -> None:
    seen = SETUP.prepared(split)
    plan = SETUP.plan(CLIENTS).calibrate(NO_NOISE)
    model = shaped(SETUP.model, seen)
    still = replace(SETUP, server=SETUP.server.replaced(learning_rate=1e-9))
    zeros = released(still, plan, seen, seed=1)
    assert np.abs(zeros).max() < 1e-6
    fresh = model.initial(SeededRandomness(seed=1)).numpy()
    np.testing.assert_allclose(released(replace(still, init_scale=2.0), plan, seen, seed=1), 2 * fresh, atol=1e-6)


def test_a_curve_has_every_so_many_rounds_and_the_last(split: Split) -> None:
    seen = SETUP.prepared(split)
    plan = SETUP.plan(CLIENTS).calibrate(NO_NOISE)
    full = curve(SETUP, plan, seen, seed=1)
    assert [point.round for point in full] == [1, 2, 3, 4]
    assert curve(SETUP, plan, seen, seed=1, every=3) == [full[2], full[3]]
    assert len({point.accuracy for point in full}) > 1


def test_an_accuracy_needs_test_examples(split: Split) -> None:
    with pytest.raises(DataError, match="give test examples"):
        measure(SETUP, replace(split, test=None), clients=CLIENTS, budget=NO_NOISE, seeds=[1])


def test_an_accuracy_needs_classes(split: Split) -> None:
    numbers = replace(split.train, labels=split.train.labels.astype(np.float32), classes=None)
    with pytest.raises(DataError, match="give labels that are classes"):
        measure(SETUP, Split(name="numbers", train=numbers), clients=CLIENTS, budget=NO_NOISE, seeds=[1])
