"""nn.GRU written out in time: torch compiles this, and nn.GRU itself it does not."""

import torch
from torch import Tensor, nn
from torch.nn import functional

_MOST = 64  # cells: each is compiled on its own


def unroll(module: nn.Module) -> None:
    """Have every nn.GRU of a module, which is a copy of our own, written out when it is called."""
    for part in module.modules():
        if type(part) is nn.GRU:
            part.__class__ = UnrolledGRU  # type: ignore[assignment]  # it keeps its parameters and what it was told


class UnrolledGRU(nn.Module):
    """What nn.GRU computes, to rounding. The products with the inputs of all times are one product.

    Edge cases: packed sequences, sequences without a batch and very long ones raise a ValueError: these are left to
    torch's own.
    """

    num_layers: int
    hidden_size: int
    batch_first: bool
    bidirectional: bool
    bias: bool

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All hidden states of the last layer, and the last of every layer."""
        if getattr(x, "ndim", 0) != 3:
            raise ValueError("only sequences of one length, in batches, are written out")
        x = x.transpose(0, 1) if self.batch_first else x
        directions = 1 + self.bidirectional
        if len(x) * self.num_layers * directions > _MOST:
            raise ValueError("so long a sequence is not written out")
        last = []
        for layer in range(self.num_layers):
            outputs = []
            for back in range(directions):
                place = layer * directions + back
                start = x.new_zeros(x.shape[1], self.hidden_size) if h is None else h[place]
                states = self._states(x, start, f"_l{layer}" + "_reverse" * back, back=bool(back))
                last.append(states[0 if back else -1])
                outputs.append(torch.stack(states))
            x = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
        return (x.transpose(0, 1) if self.batch_first else x), torch.stack(last)

    def _states(self, x: Tensor, h: Tensor, name: str, *, back: bool) -> list[Tensor]:
        """The hidden state after each time, in the order of time."""
        product, bias = getattr(self, "weight_hh" + name), getattr(self, "bias_hh" + name) if self.bias else None
        inputs = functional.linear(
            x, getattr(self, "weight_ih" + name), getattr(self, "bias_ih" + name) if self.bias else None
        ).unbind(0)
        states = []
        for now in reversed(inputs) if back else inputs:
            mine, own = now.chunk(3, 1), functional.linear(h, product, bias).chunk(3, 1)
            reset, keep = torch.sigmoid(mine[0] + own[0]), torch.sigmoid(mine[1] + own[1])
            new = torch.tanh(mine[2] + reset * own[2])
            h = new + keep * (h - new)
            states.append(h)
        return states[::-1] if back else states
