"""A training loop of your own: local Adam, one model a client; the run keeps the budget, the folder and the report.

Run: python examples/own_loop.py
"""

import sys

import torch
from torch import nn

import incrowd
from incrowd.data import iid, load_digits

split = load_digits()
partition = iid(split.train.labels, clients=60, randomness=incrowd.SeededRandomness(seed=0))
federation = incrowd.Federation(
    nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    incrowd.Clients.of(split, partition, public=True),
    privacy=incrowd.Private(epsilon=8, delta=1e-3, rounds=12),
    server=incrowd.ServerOptimizer(kind="momentum", momentum=0.5, learning_rate=1.5),
)


def trained(module: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """A client's own training."""
    adam = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(5):
        adam.zero_grad()
        nn.functional.cross_entropy(module(images), labels).backward()  # type: ignore[no-untyped-call]  # torch says no types
        adam.step()
    return module


folder = sys.argv[1] if len(sys.argv) > 1 else "out/own-loop"
with federation.session(folder) as session:
    for current in session:
        current.submit({client: trained(current.module(), *current.examples(client)) for client in current.cohort})
result = federation.result(folder)
print(result.statement)
print(f"accuracy {result.accuracy:.3f}")
