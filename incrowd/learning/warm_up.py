"""Make the machine code of compiled loops ahead of their first use: `python -m incrowd.learning.warm_up`.

It is made for this processor and kept on disk, so that no first run waits for it: in an image of a container, or after
an installation.
"""

import sys
import time

import numpy as np
import torch
from torch import Tensor

from incrowd._random import SeededRandomness
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records
from incrowd.learning.engine import CohortEngine
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.models import Model, mlp, small_cnn
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent, Local

KINDS = (torch.uint8, torch.float32)
"""The types of stored features: bytes of pictures, and numbers."""


def main() -> None:
    """Train a synthetic client for each type of features, and records, through all such loops, and print the time."""
    begun = time.perf_counter()
    for kind in KINDS:
        _trained(mlp((3, 2)), torch.zeros(2, 3).to(kind))
    _steps(small_cnn(side=16), torch.zeros(2, 16, 16))
    sys.stdout.write(f"compiled loops: ready after {time.perf_counter() - begun:.1f} s\n")


def _steps(model: Model, features: Tensor) -> None:
    """The same as records."""
    records = Records(features=features, labels=torch.tensor([0, 1]))
    training = RecordTraining(steps=1, sampling_prob=1.0, expected_batch=2.0, clip_norm=1.0, noise_multiplier=1.0)
    engine = BatchedRecords(model, records, Descent(learning_rate=0.1))
    engine.train(model.weights, training, noise=lambda total: total, batches=SeededRandomness(seed=0).stream("batches"))


def _trained(model: Model, features: Tensor) -> None:
    data = ClientTensors(features=features, labels=torch.tensor([0, 1]), offsets=np.array([0, 2]), indices=np.arange(2))
    CohortEngine(model, data, Local(learning_rate=0.1)).rehearse(model.weights)


if __name__ == "__main__":
    main()
