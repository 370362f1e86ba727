"""Short texts as tokens, and a GRU that tells their two writers apart.

Run: python examples/tokens.py
"""

import sys

import numpy as np
from torch import Tensor, nn

import incrowd


class Reader(nn.Module):
    """The last state of a GRU decides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.gru = nn.GRU(8, 16, batch_first=True)
        self.output = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, last = self.gru(self.embedding(tokens))
        outputs: Tensor = self.output(last[-1])
        return outputs


generator = np.random.default_rng(0)
writer = generator.integers(0, 2, 900)
texts = generator.integers(0, 14, (900, 12)) + 6 * writer[:, None]  # one prefers high tokens; whole numbers stay whole
data = incrowd.Clients.from_arrays(
    texts[:800], writer[:800], owner=np.arange(800) % 80, classes=2, test=(texts[800:], writer[800:]), public=True
)
federation = incrowd.Federation(
    Reader(),
    data,
    local=incrowd.Local(learning_rate=0.5, batch_size=5),
    privacy=incrowd.Private(epsilon=8, delta=1e-3, rounds=8),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/tokens")
print(result.statement)
print(f"accuracy {result.accuracy:.3f}")
