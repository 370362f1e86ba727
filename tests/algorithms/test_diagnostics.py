import math

import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.algorithms.fedavg import Watch, noise_to_signal
from tests.reference.stacks import Stack


def by_the_paper(updates: Floats) -> tuple[float, float]:
    """V_c and U_s as they are defined, one weight at a time, over matrices of q by p weights."""
    clients, q, p = updates.shape
    variances = scales = 0.0
    for i in range(q):
        for j in range(p):
            mean = sum(float(updates[k, i, j]) for k in range(clients)) / clients
            variances += sum((float(updates[k, i, j]) - mean) ** 2 for k in range(clients)) / clients
            scales += mean**2
    return variances / (q * p), scales / (q * p)


def test_one_pass_gives_the_paper_s_figures() -> None:
    updates = np.random.Generator(np.random.PCG64(3)).normal(1, 2, size=(11, 4, 3))
    watch = Watch(12)
    for rows in np.split(updates.reshape(11, 12), [2, 7]):
        watch.see(Stack(rows))
    found = watch.diagnostics()
    variance, scale = by_the_paper(updates)
    assert found.between_client_variance == pytest.approx(variance)
    assert found.update_scale == pytest.approx(scale)
    norms = np.linalg.norm(updates.reshape(11, 12), axis=1)
    assert found.norms == pytest.approx((norms.min(), *np.quantile(norms, [0.25, 0.5, 0.75]), norms.max()))


def test_what_is_not_finite_is_left_out() -> None:
    rows = np.array([[1.0, 2.0], [math.nan, 0.0], [3.0, 2.0], [math.inf, 1.0]])
    watch = Watch(2)
    watch.see(Stack(rows))
    found = watch.diagnostics()
    assert found.between_client_variance == pytest.approx(0.5)
    assert found.update_scale == pytest.approx(4.0)


def test_nobody_gives_zeros() -> None:
    found = Watch(3).diagnostics(noise_to_signal=2.0)
    assert max(found.norms) == 0
    assert found.noise_to_signal == 2.0


def test_noise_to_signal_is_estimated_from_the_release() -> None:
    size, sigma = 40_000, 0.3
    noise = np.random.Generator(np.random.PCG64(1)).normal(0, sigma, size)
    for signal in (np.full(size, 0.5), np.full(size, 0.2)):
        exact = np.linalg.norm(noise) / np.linalg.norm(signal)
        assert noise_to_signal(signal + noise, sigma) == pytest.approx(exact, rel=0.1)
    assert noise_to_signal(np.zeros(size), sigma) is None
