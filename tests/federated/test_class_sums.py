import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.data import Clients
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
