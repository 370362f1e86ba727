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
folder = sys.argv[1] if len(sys.argv) > 1 else "out/hospitals"


def learn(name: str, noise_by: Literal["party", "parties", "server"], *hospitals: str) -> incrowd.Result:
    """Train on the records of some hospitals, in twenty rounds at epsilon 0.5."""
    own = {ward: wards[ward] for ward in hospitals}
    data = incrowd.Clients.from_partitions(own, classes=2, test=(readings[1500:], ill[1500:]), public=True).named()
    # A hospital that noises takes steps at home, on a budget of its own; otherwise the server takes the steps.
    alone = noise_by == "party"
    local = incrowd.Local(learning_rate=0.3) if alone else None
    server = incrowd.ServerOptimizer() if alone else incrowd.ServerOptimizer(learning_rate=0.5)
    privacy = incrowd.Private(unit="record", noise_by=noise_by, epsilon=0.5, delta=1e-5, rounds=20)
    federation = incrowd.Federation(nn.Linear(20, 2), data, local=local, server=server, privacy=privacy)
    return federation.train(f"{folder}/{name}")


for who in ("party", "parties", "server"):
    result = learn(who, who, *wards)
    print(result.statement)
    print(f'noise_by="{who}": accuracy {result.accuracy:.3f}, epsilon {result.epsilon:.2f}\n')

by_itself = [learn(f"alone/{name}", "party", name).accuracy or 0.0 for name in wards]
wards["everything"] = (readings[:1500], ill[:1500])
pooled = learn("pooled", "server", "everything").accuracy or 0.0
print(f"each hospital alone: accuracy {np.mean(by_itself):.3f}; all records in one place: {pooled:.3f}")
