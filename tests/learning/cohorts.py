"""Small cohorts for the tests of the engine."""

from collections.abc import Sequence

import numpy as np
import torch

from incrowd import Local
from incrowd._random import Floats, SeededRandomness
from incrowd.learning import CROSS_ENTROPY, ClientTensors, CohortEngine, Loss, Model
from tests.reference.one_client import contribution

RANDOMNESS = SeededRandomness(seed=1)
FEATURES, CLASSES = 24, 5
SIZES = (12, 7, 30, 31, 29, 5, 60, 30)


def clients(
    sizes: Sequence[int] = SIZES, *, seed: int = 0, real: bool = False, offset: float = 0.0, dead: float = 0.5
) -> ClientTensors:
    """Clients of these sizes; every one uses only some features (a share of `dead` is zero in all of its examples)."""
    generator = np.random.default_rng(seed)
    total = sum(sizes)
    alive = generator.random((len(sizes), FEATURES)) >= dead
    raw = generator.integers(0, 256, (total, FEATURES)) * np.repeat(alive, sizes, axis=0)
    features = (raw / 128 - raw.astype(bool)).astype(np.float32) if real else raw.astype(np.uint8)
    order = generator.permutation(total)
    position = np.empty(total, np.int64)
    position[order] = np.arange(total)
    return ClientTensors(
        features=torch.from_numpy(features[order]),
        labels=torch.from_numpy(generator.integers(0, CLASSES, total)),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        indices=position.astype(np.int32),
        scale=1.0 if real else 1 / 255,
        offset=offset,
    )


def with_labels(data: ClientTensors, labels: torch.Tensor) -> ClientTensors:
    """The same examples with other labels."""
    return ClientTensors(
        features=data.features,
        labels=labels,
        offsets=data.offsets,
        indices=data.indices,
        scale=data.scale,
        offset=data.offset,
    )


def trained(engine: CohortEngine, weights: torch.Tensor, cohort: Sequence[int], *, round: int = 3) -> dict[int, Floats]:
    """What each client contributes, through the engine."""
    found = {}
    for chunk in engine.train(weights, cohort, randomness=RANDOMNESS, round=round):
        for client, row in zip(chunk.clients, chunk.rows(), strict=True):
            found[client] = row.astype(np.float64)
    return found


def twin(
    model: Model,
    data: ClientTensors,
    local: Local,
    weights: torch.Tensor,
    cohort: Sequence[int],
    *,
    loss: Loss = CROSS_ENTROPY,
) -> dict[int, Floats]:
    """What each client contributes, one at a time, slowly."""

    def of(client: int) -> torch.Tensor:
        return contribution(model, weights, data, local, loss=loss, randomness=RANDOMNESS, round=3, client=client)

    return {client: of(client).numpy().astype(np.float64) for client in cohort}


def assert_close(found: dict[int, Floats], expected: dict[int, Floats], *, tolerance: float = 1e-4) -> None:
    """The same clients with the same contributions, relative to each contribution's norm."""
    assert sorted(found) == sorted(expected)
    for client, row in expected.items():
        error = np.linalg.norm(found[client] - row) / np.linalg.norm(row)
        assert error <= tolerance, (client, error)
