"""Everyone does the same work. Flower has a file of its own, because it takes long to start."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from contest.compare import Competitor
from contest.lean import Lean, flat, trainable
from contest.ours import Ours
from contest.pfl import Pfl
from contest.works import CLIP_NORM, NOISE_MULTIPLIER, Task, Work
from incrowd._random import Floats
from tests.benchmarks import small

PFL = "pfl is no dependency; the equality of its work is also checked before each of its measurements"


def exactly(values: Tensor) -> Tensor:
    """Numbers in float64; tokens stay what they are."""
    return values.double() if values.is_floating_point() else values


def exact_sum(task: Task) -> Floats:
    """The clipped sum, from one client after the other in float64."""
    total = np.zeros(task.start.numel())
    features, labels = task.tensors
    for client in range(task.work.cohort):
        module = task.work.module().double()
        learnt = list(trainable(module).values())
        vector_to_parameters(task.start.double(), learnt)
        rows = task.rows(client, round=0)
        for begin in range(0, len(rows), task.batch_size):
            batch = rows[begin : begin + task.batch_size]
            loss = torch.nn.functional.cross_entropy(module(exactly(features[batch])), labels[batch])
            gradient = parameters_to_vector(torch.autograd.grad(loss, learnt))
            weights = parameters_to_vector(learnt) - 0.1 * gradient
            vector_to_parameters(weights.detach(), learnt)
        change = parameters_to_vector(learnt).detach().numpy() - task.start.numpy()
        total += change * min(1.0, CLIP_NORM / float(np.linalg.norm(change)))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("make", [Ours, partial(Ours, threads=2), Lean, Pfl], ids=["1", "2", "lean", "pfl"])
@pytest.mark.parametrize("work", [small.PERCEPTRON, small.NORMED, small.CNN, small.GRU], ids=lambda work: work.name)
def test_the_update_is_the_clipped_sum(make: Callable[[Task], Competitor], work: Work) -> None:
    if make is Pfl:
        pytest.importorskip("pfl", reason=PFL)
    one = small.task(work)
    competitor = make(one)
    found, expected = competitor.update(), exact_sum(one)
    competitor.close()
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)  # ours is of whole steps of a grid


def test_the_lean_loop_adds_the_noise_of_the_plan() -> None:
    """Within 4 standard errors; two thirds and three halves of the noise would not be."""
    lean = Lean(small.task())
    before = flat(lean.weights)
    mean = lean.update() / small.PERCEPTRON.cohort
    lean.round(0)
    noise = (flat(lean.weights) - before - mean) * small.PERCEPTRON.cohort
    error = 1 / np.sqrt(2 * noise.size)
    ratio = noise.std() / (NOISE_MULTIPLIER * CLIP_NORM)
    assert abs(ratio - 1) < 4 * error
    assert abs(2 / 3 * ratio - 1) > 4 * error
    assert abs(3 / 2 * ratio - 1) > 4 * error
