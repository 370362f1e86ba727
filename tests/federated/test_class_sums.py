import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.data import Clients, Examples
from incrowd.errors import DataError
from incrowd.federated import class_sums, nearest_mean, score
from incrowd.federated.class_sums import CONSTANT, size_of
from incrowd.learning import linear
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.plan.schedule import constant
from incrowd.privacy.release import PrivateRun
from tests.federated.conftest import CLASSES, CLIENTS, FEATURES


def asked(data: Clients, *, epsilon: float, clip_norm: float) -> tuple[np.ndarray, float]:
    budget = Budget(epsilon=epsilon, delta=1e-5)
    config = PlanConfig(
        clients=CLIENTS,
        schedule=constant(rounds=1, cohort=CLIENTS),
        sampling=Everyone,
        clip=FixedClip(clip_norm=clip_norm),
    )
    plan = config.calibrate(budget)
    ledger = Ledger.in_memory(budget=budget, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(1), size=size_of(data))
    return class_sums(data, private)


def test_sums_are_those_of_the_clients_means(data: Clients) -> None:
    sums, noise_std = asked(data, epsilon=1e6, clip_norm=10.0)
    expected = np.zeros((CLASSES, FEATURES + 1))
    for client in range(CLIENTS):
        rows = data.client(client)
        for row in rows:
            label = int(data.examples.labels[row])
            expected[label, :-1] += data.examples.values(np.array([row]))[0] / len(rows)
            expected[label, -1] += CONSTANT / len(rows)
    assert noise_std == pytest.approx(0.1)
    assert sums == pytest.approx(expected, abs=0.6)


def test_one_private_round_reads_new_examples(data: Clients) -> None:
    assert data.test is not None
    weights = nearest_mean(*asked(data, epsilon=20.0, clip_norm=3.0))
    accuracy = score(linear(FEATURES, CLASSES), weights, data.test).accuracy
    assert accuracy is not None
    assert accuracy > 0.8


def test_the_nearest_mean_is_the_nearest() -> None:
    """Against distances, one by one."""
    generator = np.random.Generator(np.random.PCG64(5))
    means, counts = generator.normal(size=(4, 6)), np.array([3.0, 1.0, 7.0, 2.0])
    sums = np.hstack([means * counts[:, None], counts[:, None] * CONSTANT])
    weights = nearest_mean(sums, 0.0)
    points = generator.normal(size=(50, 6))
    scores = points @ weights[:24].reshape(4, 6).T + weights[24:]
    for point, found in zip(points, scores.argmax(axis=1), strict=True):
        assert found == min(range(4), key=lambda label: float(np.linalg.norm(point - means[label])))


def test_the_noise_s_part_of_a_length_is_taken_off() -> None:
    generator = np.random.Generator(np.random.PCG64(6))
    means, counts, sigma = generator.normal(size=(2, 500)), np.array([10.0, 10.0]), 3.0
    sums = np.hstack([means * counts[:, None], counts[:, None] * CONSTANT])
    noised = sums.copy()
    noised[:, :-1] += generator.normal(0, sigma, size=means.shape)
    biases = nearest_mean(noised, sigma)[1000:]
    naive = nearest_mean(noised, 0.0)[1000:]
    truth = -(means**2).sum(axis=1) / 2
    assert np.all(np.abs(biases - truth) < np.abs(naive - truth))


def test_a_class_that_nobody_seems_to_have_is_never_picked() -> None:
    sums = np.array([[1.0, 0.0, CONSTANT], [5.0, 5.0, -0.1]])
    weights = nearest_mean(sums, 0.1)
    assert np.all(np.isfinite(weights))
    assert weights[-1] < -1e5


def test_numbers_have_no_class_means(data: Clients) -> None:
    numbers = Examples(features=data.examples.features, labels=data.examples.labels.astype(np.float32))
    with pytest.raises(DataError, match="not classes"):
        size_of(Clients(examples=numbers, partition=data.partition))
