"""Stacks of Linear layers with a loss of their kind, which need no autograd: a table of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from incrowd.learning.chain import chained
from incrowd.learning.losses import Canonical, Loss
from incrowd.learning.models import layers_of_flat

_WIDE = 64  # from so many outputs on, a first layer is fastest stored [inputs, outputs]
_SMALL = 2**13  # weights; measured


@dataclass(frozen=True)
class Activation:
    """A function of one number, in place, and its derivative written in terms of its value."""

    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], object]  # gradient (changed in place), value


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda d, y: torch.ops.aten.threshold_backward.grad_input(d, y, 0, grad_input=d)),
    nn.Tanh: Activation(torch.tanh_, lambda d, y: torch.ops.aten.tanh_backward.grad_input(d, y, grad_input=d)),
    nn.Sigmoid: Activation(torch.sigmoid_, lambda d, y: torch.ops.aten.sigmoid_backward.grad_input(d, y, grad_input=d)),
}


@dataclass(frozen=True)
class Dense:
    """A Linear layer, and what is applied to its outputs (nothing after the last)."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation | None


@dataclass(frozen=True)
class Program:
    """A table of layers, and how the outputs of the last are compared with labels."""

    layers: tuple[Dense, ...]
    loss: Canonical

    @property
    def wide(self) -> bool:
        """Whether the first layer is so wide that the work on its examples pays."""
        return self.layers[0].outputs >= _WIDE

    @property
    def small(self) -> bool:
        """Whether calling torch's operations would take longer than their work."""
        return self.weights <= _SMALL

    @property
    def weights(self) -> int:
        """How many there are, biases apart."""
        return sum(layer.inputs * layer.outputs for layer in self.layers)


class Labelled(Protocol):
    """Examples with their labels."""

    @property
    def labels(self) -> Tensor:
        """A label for each example, or several."""
        ...

    @property
    def plain(self) -> bool:
        """Whether an example is one tensor of numbers."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, where it is one."""
        ...


def compile_program(module: nn.Module, loss: Loss, examples: Labelled) -> Program | None:
    """The program for what the module computes of such examples and this loss of it, or None if there is none here."""
    canonical = loss.fast(examples.labels) if examples.plain else None
    chain = None if canonical is None else chained(module, examples.shape)
    layers = None if chain is None else dense_layers(chain, examples.shape)
    return None if canonical is None or layers is None else Program(layers, canonical)


def dense_layers(module: nn.Module, shape: Sequence[int]) -> tuple[Dense, ...] | None:
    """The layers that compute what the module computes for examples of this shape, or None if it has others."""
    modules = layers_of_flat(module, shape)
    if modules is None:
        return None
    layers: list[Dense] = []
    for one, after in pairwise([*modules, nn.Identity()]):
        if type(one) is nn.Linear:
            activation = ACTIVATIONS.get(type(after))
            outputs, inputs = one.weight.shape  # what its other attributes say, nobody computes with
            layers.append(Dense(inputs, outputs, one.bias is not None, activation))
        elif type(one) not in ACTIVATIONS:
            return None
    starts_or_ends_bent = not modules or type(modules[0]) in ACTIVATIONS or type(modules[-1]) in ACTIVATIONS
    bent_twice = any(type(one) in ACTIVATIONS and type(after) in ACTIVATIONS for one, after in pairwise(modules))
    return None if starts_or_ends_bent or bent_twice else tuple(layers)
