"""Five hospitals learn together; every record is protected, at one price. What differs is who adds the noise, and who
has to be trusted: each hospital alone, all hospitals together under masks, or one server.

Run: python examples/hospitals.py
"""

import sys
from typing import Literal

import numpy as np
from torch import nn

import incrowd

generator = np.random.default_rng(0)
readings = generator.normal(size=(2500, 20)).astype(np.float32)
ill = (readings[:, 0] - readings[:, 1] + 0.5 * generator.normal(size=2500) > 0).astype(np.int64)
wards = {f"hospital {n}": (readings[300 * n :][:300], ill[300 * n :][:300]) for n in range(5)}
data = incrowd.Clients.from_partitions(wards, classes=2, test=(readings[1500:], ill[1500:]), public=True).named()
folder = sys.argv[1] if len(sys.argv) > 1 else "out/hospitals"

Way = tuple[incrowd.Local | None, incrowd.ServerOptimizer]
steps = incrowd.ServerOptimizer(learning_rate=0.5)
ways: dict[Literal["party", "parties", "server"], Way] = {
    # each hospital takes noisy steps on a budget of its own, and sends weights
    "party": (incrowd.Local(learning_rate=0.3), incrowd.ServerOptimizer()),
    # the hospitals share the noise of their sum, and mask what they send: the server learns that sum alone
    "parties": (None, steps),
    # the server sees each hospital's sum of clipped gradients, and adds noise once for all of them
    "server": (None, steps),
}
for noise_by, (local, server) in ways.items():
    privacy = incrowd.Private(unit="record", noise_by=noise_by, epsilon=0.3, delta=1e-5, rounds=20)
    federation = incrowd.Federation(nn.Linear(20, 2), data, local=local, server=server, privacy=privacy)
    result = federation.train(f"{folder}/{noise_by}")
    print(result.statement)
    print(f'noise_by="{noise_by}": accuracy {result.accuracy:.3f}, epsilon {result.epsilon:.2f}\n')
