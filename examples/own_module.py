"""A module of your own, and patients each of whom is protected with all visits.

Run: python examples/own_module.py
"""

import sys

import numpy as np
from torch import nn

import incrowd

generator = np.random.default_rng(0)
patient = generator.integers(0, 300, 3000)  # whose visit each row is
visits = generator.normal(size=(3000, 6)).astype(np.float32)
returned = (visits[:, 0] + visits[:, 1] * visits[:, 2] + generator.normal(size=3000) > 0).astype(np.int64)

data = incrowd.Clients.from_arrays(
    visits[:2700], returned[:2700], owner=patient[:2700], classes=2, test=(visits[2700:], returned[2700:]), public=True
)
federation = incrowd.Federation(
    nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)),
    data,
    local=incrowd.Local(learning_rate=0.3, batch_size=10),
    privacy=incrowd.Private(epsilon=4, delta=1e-4, rounds=20, cohort=100, sampling="poisson"),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/visits")
print(result.statement)
print(f"accuracy {result.accuracy:.3f}; of the first visits {result.predict(visits[:5])}")
