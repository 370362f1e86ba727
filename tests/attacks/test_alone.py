"""What a client contributes is, bit for bit, its own: neighbours, chunks, threads and order change nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd._random import Floats
from incrowd.learning import ClientTensors, CohortEngine, Execution, LocalTraining, Model, linear, mlp, small_cnn
from incrowd.learning.total import Shortening, Summed
from incrowd.privacy.mechanism.clipping import FixedClip
from tests.learning.cohorts import RANDOMNESS

CLIP = 1.0
BITS = 2.0**-19  # of the clip bound: a step of the sum's grid


def made_up(
    sizes: Sequence[int], *, features: int, classes: int, zeros: float = 0.0, scale: float = 1.0, seed: int = 0
) -> ClientTensors:
    """Clients whose examples depend on the seed, their number and their size alone. A share of features is zero."""
    several = []
    for number, size in enumerate(sizes):
        generator = np.random.default_rng((seed, number))
        own = generator.standard_normal((size, features)) * (generator.random(features) >= zeros)
        several.append((own * (generator.random(own.shape) >= zeros), generator.integers(0, classes, size)))
    return ClientTensors(
        features=torch.from_numpy(np.concatenate([own for own, _ in several]).astype(np.float32) * scale),
        labels=torch.from_numpy(np.concatenate([labels for _, labels in several])),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        indices=np.arange(sum(sizes)),
    )


def summed(engine: CohortEngine, cohort: Sequence[int], *, round: int = 0) -> Summed:
    how = Shortening(bound=CLIP, parts=None, factors=FixedClip(clip_norm=CLIP).factors)
    weights = engine.model.initial(RANDOMNESS)
    return engine.train_and_sum(weights, cohort, how, randomness=RANDOMNESS, round=round)


def longest_move(sum_of: Callable[[Sequence[int]], Floats], cohort: Sequence[int], leavers: Sequence[int]) -> float:
    """How far the sum moves when one client leaves, at most."""
    everyone = sum_of(cohort)
    return max(float(np.linalg.norm(everyone - sum_of([k for k in cohort if k != one]))) for one in leavers)


# The attack: chaotic local training amplifies a difference in the last bit until the contribution is another one.

SIZES = (*[30] * 16, 33)
CHAOS = LocalTraining(learning_rate=2.0, epochs=200)


def padded_to_the_longest(data: ClientTensors, model: Model, cohort: Sequence[int]) -> Floats:
    """The broken twin: clients train in full batches that are filled up, with weight 0, to the cohort's longest."""
    width = max(len(data.examples(k)) for k in cohort)
    total = np.zeros(model.size)
    for client in cohort:
        module = model.with_weights(model.initial(RANDOMNESS)).train()
        own = torch.from_numpy(data.examples(client))
        features = torch.zeros(width, data.shape[0])
        features[: len(own)] = data.features[own]
        labels = torch.zeros(width, dtype=torch.int64)
        labels[: len(own)] = data.labels[own]
        weight = (torch.arange(width) < len(own)) / len(own)
        parameters = list(module.parameters())
        for _ in range(CHAOS.epochs):
            losses = nn.functional.cross_entropy(module(features), labels, reduction="none")
            gradients = torch.autograd.grad((losses * weight).sum(), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, list(gradients), alpha=-CHAOS.learning_rate)
        learnt = torch.cat([p.detach().reshape(-1) for p in parameters]) - model.initial(RANDOMNESS)
        row = learnt.numpy().astype(np.float64)
        total += row * min(1.0, CLIP / np.linalg.norm(row))
    return total


def test_leaving_a_client_out_moves_the_sum_by_no_more_than_the_clip() -> None:
    data, model = made_up(SIZES, features=64, classes=4, seed=2), mlp((64, 50, 50, 4))
    engine, cohort = CohortEngine(model, data, CHAOS), range(len(SIZES))
    moved = longest_move(lambda some: summed(engine, some).total, cohort, (0, 7, 16))
    assert moved <= CLIP
    broken = longest_move(partial(padded_to_the_longest, data, model), cohort, (16,))
    assert broken > 1.2 * CLIP
