"""Numbers to predict, with a loss of torch's.

Run: python examples/regression.py
"""

import sys

import numpy as np
from torch import nn

import incrowd

generator = np.random.default_rng(0)
rooms = generator.uniform(-1, 1, (2000, 4)).astype(np.float32)
price = (rooms @ np.array([0.5, -0.25, 0.1, 0.0]) + 0.05 * generator.normal(size=2000)).astype(np.float32)
data = incrowd.Clients.from_arrays(
    rooms[:1800], price[:1800], owner=np.arange(1800) % 150, test=(rooms[1800:], price[1800:]), public=True
)
federation = incrowd.Federation(
    nn.Linear(4, 1),
    data,
    loss=nn.HuberLoss(),
    local=incrowd.Local(learning_rate=0.2, batch_size=4),
    privacy=incrowd.Private(epsilon=2, delta=1e-3, rounds=10, clip=incrowd.FixedClip(clip_norm=0.2)),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/regression")
print(result.statement)
error = float(np.sqrt(np.mean((result.predict(rooms[1800:])[:, 0] - price[1800:]) ** 2)))
print(f"root of the mean squared error {error:.3f}, of a constant {price[1800:].std():.3f}")
