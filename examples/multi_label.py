"""Several yes-or-no labels for each example.

Run: python examples/multi_label.py
"""

import sys

import numpy as np
from torch import nn

import incrowd

generator = np.random.default_rng(0)
readings = generator.normal(size=(1500, 8)).astype(np.float32)
findings = (readings @ generator.normal(size=(8, 3)) > 0).astype(np.float32)  # any of three may be there
data = incrowd.Clients.from_arrays(
    readings[:1300], findings[:1300], owner=np.arange(1300) % 130, test=(readings[1300:], findings[1300:]), public=True
)
federation = incrowd.Federation(
    nn.Linear(8, 3),
    data,
    loss="logistic",
    local=incrowd.Local(learning_rate=0.5, batch_size=5),
    privacy=incrowd.Private(epsilon=4, delta=1e-3, rounds=10),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/findings")
print(result.statement)
right = (result.predict(readings[1300:]) > 0) == findings[1300:]
print(f"right answers of each of the three: {right.mean(axis=0).round(3)}")
