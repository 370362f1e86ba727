"""Digits and a convolutional network; each of 100 clients is protected.

Run: python examples/images.py
"""

import sys

from torch import nn

import incrowd
from incrowd.data import iid, load_digits

split = load_digits()  # real handwriting, 8 x 8 pixels, embedded
partition = iid(split.train.labels, clients=100, randomness=incrowd.SeededRandomness(seed=0))
network = nn.Sequential(
    nn.Unflatten(1, (1, 8)),
    nn.Conv2d(1, 8, 3),
    nn.GroupNorm(2, 8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(72, 10),
)
federation = incrowd.Federation(
    network,
    incrowd.Clients.of(split, partition, public=True),
    local=incrowd.Local(learning_rate=0.2, batch_size=5, epochs=2),
    privacy=incrowd.Private(epsilon=8, delta=1e-3, rounds=15),
    server=incrowd.ServerOptimizer(kind="momentum", momentum=0.5),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/images")
print(result.statement)
print(f"accuracy {result.accuracy:.3f}")
