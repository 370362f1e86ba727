"""Stacks of Linear layers with all that may be between them, as a table of layers."""

from dataclasses import dataclass

from torch import nn

from incrowd.learning.chain import chained
from incrowd.learning.losses import Canonical, Loss
from incrowd.learning.models import layers_of_flat
from incrowd.learning.program import ACTIVATIONS, Activation, Labelled

_WIDE = 64  # from so many outputs on, a first layer is fastest stored [inputs, outputs]


@dataclass(frozen=True)
class Smooth:
    """A function of one number whose derivative is no function of its value."""

    name: str  # of its loop


@dataclass(frozen=True)
class Norm:
    """Each example's outputs moved to mean 0 and variance 1, then, if there are such weights, stretched and shifted."""

    eps: float
    gain: bool
    shift: bool


Between = Activation | Smooth | Norm

_GELU = {"none": Smooth("gelu"), "tanh": Smooth("gelu_tanh")}


@dataclass(frozen=True)
class Layer:
    """A Linear layer, and what its outputs go through, in order."""

    inputs: int
    outputs: int
    bias: bool
    between: tuple[Between, ...] = ()


@dataclass(frozen=True)
class StackTable:
    """A table of layers, and how the outputs of the last are compared with labels."""

    layers: tuple[Layer, ...]
    loss: Canonical

    @property
    def wide(self) -> bool:
        """Whether the first layer is so wide that the work on its examples pays."""
        return self.layers[0].outputs >= _WIDE


def stack_of(module: nn.Module, loss: Loss, examples: Labelled) -> StackTable | None:
    """The table for what the module computes of such examples and this loss of it, or None if it has other layers,
    another loss, or frozen or tied parameters.
    """
    canonical = loss.fast(examples.labels) if examples.plain else None
    chain = None if canonical is None else chained(module, examples.shape)
    modules = None if chain is None else layers_of_flat(chain, examples.shape)
    layers = None if modules is None else _layers(modules)
    return None if canonical is None or not layers else StackTable(layers, canonical)


def _layers(modules: list[nn.Module]) -> tuple[Layer, ...] | None:
    """The layers, or None if they do not begin and end with a Linear, or something else is between."""
    layers: list[Layer] = []
    left = list(modules)
    while left:
        linear = left.pop(0)
        if type(linear) is not nn.Linear:
            return None
        outputs, inputs = linear.weight.shape  # what its other attributes say, nobody computes with
        between: list[Between] = []
        while left and type(left[0]) is not nn.Linear:
            one = _between(left.pop(0), outputs)
            if one is None or (isinstance(one, Activation) and between and isinstance(between[-1], Activation)):
                return None  # an Activation writes over what the one before needs
            between.append(one)
        layers.append(Layer(inputs, outputs, linear.bias is not None, tuple(between)))
    return tuple(layers) if layers and not layers[-1].between else None


def _between(module: nn.Module, width: int) -> Between | None:
    """What a module does to so many outputs, if it is one of those."""
    if type(module) is nn.GELU:
        return _GELU.get(module.approximate)
    if type(module) is nn.SiLU:
        return None if module.inplace else Smooth("silu")
    if type(module) is nn.LayerNorm:
        gain, shift = module.weight is not None, module.bias is not None
        return Norm(float(module.eps), gain, shift) if module.normalized_shape == (width,) else None
    return ACTIVATIONS.get(type(module))
