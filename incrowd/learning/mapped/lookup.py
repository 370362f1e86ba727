"""An embedding as the product of rows with a single one and the table.

What rows of a table learn is added up by index, and where the indices of many clients are sorted together, the order
in which a client's own are added may follow from everybody's. A product for each client has an order of its own.
"""

import torch
from torch import Tensor, nn

_MOST = 4096  # rows: of larger tables the product takes longer than a client's other work


def look_up_by_products(module: nn.Module) -> None:
    """Have every trained nn.Embedding of a module, which is a copy of our own, computed so when it is called.

    Edge cases: large tables, and those with a padding index, a largest norm or other wishes, are left to torch.
    """
    for part in module.modules():
        if type(part) is nn.Embedding and _plain(part) and part.weight.requires_grad:
            part.__class__ = ProductEmbedding  # type: ignore[assignment]  # it keeps its table


def _plain(table: nn.Embedding) -> bool:
    odd = table.sparse or table.scale_grad_by_freq or table.padding_idx is not None or table.max_norm is not None
    return not odd and table.num_embeddings <= _MOST


class ProductEmbedding(nn.Module):
    """What nn.Embedding computes, as long as its numbers are finite."""

    weight: Tensor
    num_embeddings: int

    def forward(self, rows: Tensor) -> Tensor:
        """The rows of these numbers. Edge cases: a number that the table does not have is torch's error."""
        numbers = torch.arange(self.num_embeddings, device=rows.device)
        there = numbers.gather(0, rows.reshape(-1)).view(rows.shape)
        outputs: Tensor = (there.unsqueeze(-1) == numbers).to(self.weight.dtype) @ self.weight
        return outputs
