"""A Linear layer at work."""

import torch
from torch import Tensor

from incrowd.learning.paths.fused.parameter import Parameter


class LinearLayer:
    """A layer of one client."""

    def __init__(self, weight: Parameter, bias: Parameter | None, *, by_input: bool) -> None:
        self.weight = weight
        self.bias = bias  # [1, outputs]
        self.by_input = by_input
        self.by_in = weight.value if by_input else weight.value.mT  # [inputs, outputs]
        self.by_out = self.by_in.mT
        self.square = 0.0 if bias is None else 1.0
        """Of the constant feature whose weight the bias is; it is another where features are one with the bias."""

    def forward(self, x: Tensor, *, out: Tensor, scale: float = 1.0) -> None:
        """The outputs for examples x [rows, inputs] times a scale."""
        if self.bias is not None:
            torch.addmm(self.bias.value, x, self.by_in, alpha=scale, out=out)
        else:
            torch.addmm(out, x, self.by_in, beta=0, alpha=scale, out=out)

    def update(self, x: Tensor, d: Tensor, ones: Tensor, scale: float = 1.0) -> None:
        """One step, given the gradient d [rows, outputs] of the outputs and ones [1, rows]."""
        self.learn(x, d, scale)
        if self.bias is not None:
            self.bias.update(ones, d, self.square)

    def learn(self, x: Tensor, d: Tensor, scale: float) -> None:
        """One step of the weight alone."""
        if self.by_input:
            self.weight.update(x.mT, d, scale)
        else:
            self.weight.update(d.mT, x, scale)
