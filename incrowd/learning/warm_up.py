"""Make this processor's machine code ahead of a first run: `python -m incrowd.learning.warm_up`."""

import sys
import time

import numpy as np
import torch

from incrowd._random import SeededRandomness
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.learning.engine import CohortEngine
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.models import mlp, small_cnn
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent, Local


def main() -> None:
    """Train a synthetic client for each type of features, and records, through all such loops, and print the time."""
    begun = time.perf_counter()
    labels = torch.tensor([0, 1])
    for kind in (torch.uint8, torch.float32):  # stored features: bytes of pictures, and numbers
        features, model = torch.zeros(2, 3).to(kind), mlp((3, 2))
        data = ClientTensors(features=features, labels=labels, offsets=np.array([0, 2]), indices=np.arange(2))
        CohortEngine(model, data, Local(learning_rate=0.1)).rehearse(model.weights)
    model, records = small_cnn(side=16), Records(features=torch.zeros(2, 16, 16), labels=labels)
    training = RecordTraining(steps=1, sampling_prob=1.0, expected_batch=2.0, clip_norm=1.0, noise_multiplier=1.0)
    engine, batches = BatchedRecords(model, records, Descent(learning_rate=0.1)), SeededRandomness(0).stream("batches")
    engine.train(model.weights, training, noise=lambda total: total, batches=batches)
    sys.stdout.write(f"compiled loops: ready after {time.perf_counter() - begun:.1f} s\n")


if __name__ == "__main__":
    main()
