"""Layers written in another way than torch's, for its compiler and for `vmap`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_CELLS = 64  # most cells of an unrolled layer: torch compiles each of them
_ROWS = 4096  # most rows of a table: the product of a larger one takes longer than a client's other work

States = tuple[Tensor, ...]
"""The tensors that pass from one time to the next; the first of them is the output."""


def rewrite(module: nn.Module) -> None:
    """Rewrite a module, which is a copy of our own, for many clients or records in the same operations."""
    unroll(module)
    convolve(module)
    look_up(module)


def convolve(module: nn.Module) -> None:
    """Have plain nn.Conv2d of our copy of a module computed by windows: a product of each client, and no groups."""
    for part in module.modules():
        zeros = isinstance(part, nn.Conv2d) and part.padding_mode == "zeros" and not isinstance(part.padding, str)
        if type(part) is nn.Conv2d and part.groups == 1 and zeros:
            part.__class__ = WindowConv2d  # type: ignore[assignment]  # it keeps its parameters and settings


class WindowConv2d(nn.Module):
    """nn.Conv2d by windows, the same to rounding. Edge cases: pictures without a batch are a ValueError."""

    weight: Tensor
    bias: Tensor | None
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures [N, C, H, W]."""
        if pictures.ndim != 4:
            raise ValueError("only pictures in batches are taken in windows")
        windows = functional.unfold(pictures, self.kernel_size, self.dilation, self.padding, self.stride)
        outputs: Tensor = self.weight.flatten(1) @ windows
        if self.bias is not None:
            outputs = outputs + self.bias[:, None]
        reach = self.dilation[0] * (self.kernel_size[0] - 1)
        height = (pictures.shape[2] + 2 * self.padding[0] - reach - 1) // self.stride[0] + 1
        return outputs.view(len(pictures), len(self.weight), height, -1)


def look_up(module: nn.Module) -> None:
    """Have trained, plain, small nn.Embedding of our copy computed by products: each client's rows have one order."""
    for part in module.modules():
        if type(part) is nn.Embedding and _usual(part) and part.weight.requires_grad:
            part.__class__ = ProductEmbedding  # type: ignore[assignment]  # it keeps its table


def _usual(table: nn.Embedding) -> bool:
    odd = table.sparse or table.scale_grad_by_freq or table.padding_idx is not None or table.max_norm is not None
    return not odd and table.num_embeddings <= _ROWS


class ProductEmbedding(nn.Module):
    """nn.Embedding by a product, the same as long as its numbers are finite."""

    weight: Tensor
    num_embeddings: int

    def forward(self, rows: Tensor) -> Tensor:
        """The rows of these numbers. Edge cases: a number that the table does not have is torch's error."""
        numbers = torch.arange(self.num_embeddings, device=rows.device)
        there = numbers.gather(0, rows.reshape(-1)).view(rows.shape)
        outputs: Tensor = (there.unsqueeze(-1) == numbers).to(self.weight.dtype) @ self.weight
        return outputs


def unroll(module: nn.Module) -> None:
    """Have recurrent layers of our copy of a module computed step by step, which torch compiles and maps."""
    for part in module.modules():
        if type(part) in (nn.RNN, nn.GRU, nn.LSTM) and not getattr(part, "proj_size", 0):
            part.__class__ = Unrolled  # it keeps its parameters and settings


class Unrolled(nn.Module):
    """A recurrent layer step by step, the same to rounding. What it leaves to torch's layer raises a ValueError."""

    mode: str
    num_layers: int
    hidden_size: int
    batch_first: bool
    bidirectional: bool
    bias: bool

    def forward(self, x: Tensor, hx: Tensor | Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor | States]:
        """The last layer's outputs at all times, and every layer's last states."""
        if getattr(x, "ndim", 0) != 3:
            raise ValueError("only sequences of one length, in batches, are written out")
        x = x.transpose(0, 1) if self.batch_first else x
        directions, several = 1 + self.bidirectional, self.mode == "LSTM"
        if len(x) * self.num_layers * directions > _CELLS:
            raise ValueError("so long a sequence is not written out")
        given = [hx] if isinstance(hx, Tensor) else hx
        last = []
        for layer in range(self.num_layers):
            outputs = []
            for back in range(directions):
                place = layer * directions + back
                nothing = [x.new_zeros(x.shape[1], self.hidden_size)] * (1 + several)
                start = nothing if given is None else [one[place] for one in given]
                found = self._found(x, tuple(start), f"_l{layer}" + "_reverse" * back, back=bool(back))
                last.append(found[0 if back else -1])
                outputs.append(torch.stack([one[0] for one in found]))
            x = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
        ends = tuple(torch.stack(one) for one in zip(*last, strict=True))
        return (x.transpose(0, 1) if self.batch_first else x), ends if several else ends[0]

    def _found(self, x: Tensor, states: States, name: str, *, back: bool) -> list[States]:
        """The states after each time, in the order of time."""
        into, again = (getattr(self, f"weight_{kind}{name}") for kind in ("ih", "hh"))
        first, second = (getattr(self, f"bias_{kind}{name}") if self.bias else None for kind in ("ih", "hh"))
        inputs = functional.linear(x, into, first).unbind(0)
        found = []
        for now in reversed(inputs) if back else inputs:
            states = _STEPS[self.mode](now, functional.linear(states[0], again, second), states)
            found.append(states)
        return found[::-1] if back else found


def _gru(inputs: Tensor, own: Tensor, states: States) -> States:
    from_inputs, from_own = inputs.chunk(3, 1), own.chunk(3, 1)
    reset, keep = torch.sigmoid(from_inputs[0] + from_own[0]), torch.sigmoid(from_inputs[1] + from_own[1])
    new = torch.tanh(from_inputs[2] + reset * from_own[2])
    return (new + keep * (states[0] - new),)


def _lstm(inputs: Tensor, own: Tensor, states: States) -> States:
    enter, keep, new, show = (inputs + own).chunk(4, 1)
    cell = torch.sigmoid(keep) * states[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell


_STEPS: dict[str, Callable[[Tensor, Tensor, States], States]] = {
    "RNN_TANH": lambda inputs, own, _: (torch.tanh(inputs + own),),
    "RNN_RELU": lambda inputs, own, _: (torch.relu(inputs + own),),
    "GRU": _gru,
    "LSTM": _lstm,
}
"""The next states, from the products with the inputs and with the layer's last output, and the last states."""
