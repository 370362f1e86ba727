"""Fine-tuning: a small transformer stays frozen, but for its queries and its head.

Run: python examples/fine_tuning.py
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

import incrowd


class Transformer(nn.Module):
    """One layer of attention over tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.output = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.embedding(tokens)
        attended = nn.functional.scaled_dot_product_attention(self.query(seen), self.key(seen), self.value(seen))
        outputs: Tensor = self.output(attended.mean(1))
        return outputs


torch.manual_seed(0)  # stands for a pretrained module, which you would load
tuned = Transformer().requires_grad_(requires_grad=False)
for layer in (tuned.query, tuned.output):
    layer.requires_grad_(requires_grad=True)

generator = np.random.default_rng(0)
topic = generator.integers(0, 2, 700)
texts = generator.integers(0, 20, (700, 10)) + 10 * topic[:, None]
data = incrowd.Clients.from_arrays(
    texts[:600], topic[:600], owner=np.arange(600) % 60, classes=2, test=(texts[600:], topic[600:]), public=True
)
federation = incrowd.Federation(
    tuned,
    data,
    local=incrowd.Local(learning_rate=0.5, batch_size=5),
    privacy=incrowd.Private(epsilon=8, delta=1e-3, rounds=8),
)
result = federation.train(sys.argv[1] if len(sys.argv) > 1 else "out/fine-tuning")
print(result.statement)
print(f"accuracy {result.accuracy:.3f}; {result.model.size} numbers were trained, clipped, noised and sent")
