"""The networks of `contest.modules` as Opacus has to have them: attention of Linear layers that it can see.

Opacus' own attention is not used: with the batch first it was found to mix up the places of a sequence.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from contest.modules import TokenTransformer


class VisibleLayer(nn.Module):
    """An encoder layer without dropout, as nn.TransformerEncoderLayer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own: nn.MultiheadAttention = layer.self_attn
        self.heads = own.num_heads
        self.query, self.key, self.value = (nn.Linear(own.embed_dim, own.embed_dim) for _ in range(3))
        self.after: nn.Module = own.out_proj
        self.norm1, self.linear1, self.linear2, self.norm2 = layer.norm1, layer.linear1, layer.linear2, layer.norm2

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        heads = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in self._first())
        x = self.norm1(x + self.after(scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)))
        outputs: Tensor = self.norm2(x + self.linear2(self.linear1(x).relu()))
        return outputs

    def in_order(self) -> list[Tensor]:
        """The parameters in torch's order, where the first three layers of attention are one."""
        rest = (self.after, self.linear1, self.linear2, self.norm1, self.norm2)
        several = [*(layer.weight for layer in self._first()), *(layer.bias for layer in self._first())]
        return [*several, *(parameter for layer in rest for parameter in layer.parameters())]

    def _first(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value


def visible(module: nn.Module) -> tuple[nn.Module, list[Tensor]]:
    """A module that Opacus can train, and its parameters in the order that they have in this one."""
    if not isinstance(module, TokenTransformer):
        return module, list(module.parameters())
    layer: Any = VisibleLayer(module.encoder)
    module.encoder = layer
    return module, [*module.embedding.parameters(), *layer.in_order(), *module.output.parameters()]
