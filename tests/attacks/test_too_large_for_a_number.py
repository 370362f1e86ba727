"""A client whose numbers, or whose training, leave what float32 can hold spoils nothing but its own contribution.

Attack: rows are filled up with zeros in compiled loops. Zero times what is no number is no number either: it was taken
for a value that the next layer reads, at a place that this layer does not have. The loops then read and wrote beyond
their memory, and the process of all clients ended (SIGBUS), or went on with whatever was there.
"""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.learning import ClientTensors, CohortEngine, Model, backends
from incrowd.learning.backends import fast

RANDOMNESS = SeededRandomness(seed=1)
EACH, FEATURES, WIDTH = 20, 16, 70
Rows = dict[int, tuple[NDArray[np.float32], float]]


def shallow() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 40), nn.ReLU(), nn.Linear(40, 2))


CASES: dict[str, tuple[Callable[[], nn.Module], float, Local]] = {
    "a step": (shallow, 3e38, Local(learning_rate=2.0, batch_size=1, epochs=3)),
    "a value": (deep, 3e38, Local(learning_rate=0.1, batch_size=5, epochs=3)),
    "a rate": (deep, 1.0, Local(learning_rate=1e20, batch_size=5, epochs=3)),
    "nothing": (deep, 1.0, Local(learning_rate=0.1, batch_size=5, epochs=3)),
}


def data(largest: float) -> ClientTensors:
    """Three clients; an example of the second has a number as large as this."""
    generator = np.random.default_rng(0)
    features = generator.random((3 * EACH, FEATURES)).astype(np.float32)
    features[EACH + 3] *= np.float32(largest)
    return ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(generator.integers(0, 2, 3 * EACH)),
        offsets=EACH * np.arange(4),
        indices=np.arange(3 * EACH),
    )


def learnt(case: str, cohort: list[int], *, way: object = fast.make) -> Rows:
    """What these clients contribute, and its norm."""
    make, largest, local = CASES[case]
    torch.manual_seed(0)
    model = Model(make())
    engine = CohortEngine(model, data(largest), local, backends=[way])  # type: ignore[list-item]  # a way to make a path
    found: Rows = {}
    for chunk in engine.train(model.weights, cohort, randomness=RANDOMNESS, round=0):
        rows, norms = chunk.rows(), chunk.norms()[:, 0]
        found |= {client: (rows[j], float(norms[j])) for j, client in enumerate(chunk.clients)}
    return found


def check(case: str) -> None:
    """The second client is counted or left out, and the others learn what they learn alone."""
    for _ in range(3):
        together = learnt(case, [0, 1, 2])
        for client in (0, 2):
            alone = learnt(case, [client])[client]
            assert together[client][0].tobytes() == alone[0].tobytes()
        own, norm = together[1]
        assert not np.isfinite(norm) or np.linalg.norm(own.astype(np.float64)) <= norm


@pytest.mark.slow
@pytest.mark.parametrize("case", ["a step", "a value", "a rate"])
def test_what_is_too_large_is_nobody_elses_business(case: str) -> None:
    code = f"from tests.attacks.test_too_large_for_a_number import check; check({case!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr.decode()[-500:]


def test_control_a_contribution_of_usual_numbers_is_that_of_a_plain_loop() -> None:
    for client, (row, _) in learnt("nothing", [0, 1, 2], way=backends.loop.make).items():
        assert np.allclose(learnt("nothing", [client])[client][0], row, atol=1e-5)
