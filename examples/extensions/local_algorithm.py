"""A local algorithm of your own: FedProx, whose steps stay near the server's weights.

Run: python examples/extensions/local_algorithm.py
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import incrowd
from incrowd.testing import check_local_algorithm
from incrowd.types import ClientAtWork, register

PROXIMAL = 0.1


class FedProx:
    """SGD with the gradient of PROXIMAL / 2 |w - w_server|^2 added to each step."""

    def __init__(self, local: incrowd.Local) -> None:
        self.rate = local.learning_rate

    def sends(self, size: int) -> int:
        """Nothing but the update."""
        return 0 * size

    @torch.no_grad()
    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        """Move each parameter by its gradient, and towards the server's."""
        for batch in client.batches():
            found = client.gradients(batch)
            for now, start, gradient in zip(client.parameters, client.starts, found, strict=True):
                if gradient is not None:
                    now.sub_(gradient + PROXIMAL * (now - start), alpha=self.rate)
        return shared


check_local_algorithm(FedProx)
register("local_algorithms", "fedprox", FedProx)

rows = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
labels = (rows[:, 0] > 0).astype(np.int64)
data = incrowd.Clients.from_arrays(rows, labels, owner=np.arange(600) // 6, classes=2, test=(rows, labels), public=True)
federation = incrowd.Federation(
    nn.Linear(3, 2),
    data,
    local=incrowd.Local(algorithm="fedprox", learning_rate=0.3, batch_size=2, epochs=2),
    privacy=incrowd.Private(epsilon=4, delta=1e-4, rounds=10),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/fedprox", progress=False)
print(result.statement)
print(f"accuracy {result.accuracy:.2f}")
