"""Three hospitals, each of which protects every record and keeps a budget of its own.

Run: python examples/hospitals.py
"""

import sys

import numpy as np
from torch import nn

import incrowd

generator = np.random.default_rng(0)
readings = generator.normal(size=(1300, 5)).astype(np.float32)
ill = (readings[:, 0] - readings[:, 1] + 0.5 * generator.normal(size=1300) > 0).astype(np.int64)
parts = {
    "north": (readings[:300], ill[:300]),
    "south": (readings[300:600], ill[300:600]),
    "west": (readings[600:1000], ill[600:1000]),
}
data = incrowd.Clients.from_partitions(parts, classes=2, test=(readings[1000:], ill[1000:]), public=True).named()
federation = incrowd.Federation(
    nn.Linear(5, 2),
    data,
    local=incrowd.LocalRecords(learning_rate=0.5, batch_size=30),
    privacy=incrowd.PrivateRecords(epsilon=(1.0, 2.0, 4.0), delta=1e-4, rounds=6),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/hospitals")
print(result.statement)
print(f"accuracy {result.accuracy:.3f}; spent {result.summary['epsilon_by_silo']}")
