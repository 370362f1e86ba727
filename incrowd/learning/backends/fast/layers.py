"""A module as a table of layers that compiled code can compute."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn

from incrowd.learning.chain import chained
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Loss
from incrowd.learning.models import picture_of

LINEAR, CONVOLUTION, NORM, POOL, RELU, TANH, SIGMOID, GELU, GELU_TANH, SILU = range(10)
SOFTMAX, LOGIT, NUMBER, RATE = range(4)  # the mean of the outputs that a loss compares with a label

Shape = tuple[int, int, int]
"""Channels, rows and columns; a vector has one row and one column."""

_LOSSES = {CROSS_ENTROPY: SOFTMAX, LOGISTIC: LOGIT, SQUARED: NUMBER, POISSON: RATE}
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: RELU, nn.Tanh: TANH, nn.Sigmoid: SIGMOID, nn.SiLU: SILU}
_FROM_OUTPUT = (RELU, TANH, SIGMOID)  # their derivatives are computed from their outputs


class Labelled(Protocol):
    """Examples with their labels, of clients or records."""

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
        """The shape of an example."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer, the shapes of its input and output, and its settings.

    `size`, `stride` and `padding` are those of a window; a norm has `groups` of channels. Its weight is its gain.
    """

    kind: int
    before: Shape
    after: Shape
    weight: bool = False
    bias: bool = False
    size: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1
    eps: float = 0.0

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of the inputs of one number of the output, in torch's order; empty for a norm."""
        if self.kind == NORM:
            return ()
        return self.before if self.kind == LINEAR else (self.before[0], self.size, self.size)

    @property
    def places(self) -> int:
        """The number of rows times columns."""
        return self.after[1] * self.after[2]


@dataclass(frozen=True)
class Stack:
    """Layers, the first and the last with weights, and how the outputs are compared with labels."""

    layers: tuple[Layer, ...]
    loss: int

    @property
    def pictures(self) -> bool:
        """True if the stack begins with a convolution."""
        return self.layers[0].kind == CONVOLUTION


def layers_of(module: nn.Module, loss: Loss, examples: Labelled) -> Stack | None:
    """The layers that the module is, or None if it has others, another loss, or frozen or tied parameters."""
    if not examples.plain or examples.labels.ndim != 1 or loss not in _LOSSES:
        return None
    chain = chained(module, examples.shape)
    layers = None if chain is None else _layers(list(chain), examples.shape)
    return None if layers is None else Stack(layers, _LOSSES[loss])


def _layers(modules: list[nn.Module], shape: Sequence[int]) -> tuple[Layer, ...] | None:
    picture = picture_of(modules[0], shape) if modules else None
    if picture is None and len(shape) == 3:
        picture = (shape[0], shape[1], shape[2])
    elif picture is not None:
        modules = modules[1:]
    now, flat = picture or (math.prod(shape), 1, 1), picture is None and len(shape) == 1
    layers: list[Layer] = []
    for module in modules:
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            now, flat = now if layers else (math.prod(shape), 1, 1), True
            continue
        layer = _layer(module, now, flat=flat)
        if layer is None or min(layer.after) < 1:
            return None
        if layer.kind > POOL and layers and layers[-1].kind in _FROM_OUTPUT:
            return None  # an activation works in place
        if layer.kind == POOL and layers and layers[-1].kind == RELU:
            layers[-1:] = [layer, replace(layers[-1], before=layer.after, after=layer.after)]  # the same, on fewer
        else:
            layers.append(layer)
        now = layer.after
    begins = bool(layers) and layers[0].kind in (LINEAR, CONVOLUTION)
    return tuple(layers) if begins and layers[-1].kind == LINEAR else None


def _layer(module: nn.Module, now: Shape, *, flat: bool) -> Layer | None:
    """The layer that a module is for inputs of this shape, or None for any other module."""
    vector = flat and now[1:] == (1, 1)
    if type(module) is nn.Linear:
        outputs, inputs = module.weight.shape
        known = flat and inputs == math.prod(now)
        made = Layer(kind=LINEAR, before=now, after=(outputs, 1, 1), weight=True, bias=module.bias is not None)
        return made if known else None
    if type(module) is nn.Conv2d:
        return None if flat else _convolution(module, now)
    if type(module) is nn.MaxPool2d:
        return None if flat else _pool(module, now)
    if type(module) is nn.GroupNorm and (vector or not flat) and module.num_channels == now[0]:
        return _norm(module, now, module.num_groups)
    if type(module) is nn.LayerNorm and vector and module.normalized_shape == (now[0],):
        return _norm(module, now, 1)
    kind = _ACTIVATIONS.get(type(module))
    if type(module) is nn.GELU:
        kind = {"none": GELU, "tanh": GELU_TANH}.get(module.approximate)
    return None if kind is None else Layer(kind=kind, before=now, after=now)


def _norm(module: nn.GroupNorm | nn.LayerNorm, now: Shape, groups: int) -> Layer:
    gain, shift = module.weight is not None, module.bias is not None
    return Layer(kind=NORM, before=now, after=now, weight=gain, bias=shift, groups=groups, eps=float(module.eps))


def _convolution(module: nn.Conv2d, now: Shape) -> Layer | None:
    """A convolution with square windows over zero padding."""
    square = all(len({*pair}) == 1 for pair in (module.kernel_size, module.stride, module.padding))
    plain = module.padding_mode == "zeros" and module.groups == 1 and module.dilation == (1, 1)
    if isinstance(module.padding, str) or not square or not plain or module.in_channels != now[0]:
        return None
    size, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
    rows, columns = ((side + 2 * padding - size) // stride + 1 for side in now[1:])
    after, bias = (module.out_channels, rows, columns), module.bias is not None
    made = Layer(kind=CONVOLUTION, before=now, after=after, weight=True, bias=bias)
    return replace(made, size=size, stride=stride, padding=padding)


def _pool(module: nn.MaxPool2d, now: Shape) -> Layer | None:
    """The largest of squares side by side."""
    pairs = (one if isinstance(one, tuple) else (one, one) for one in (module.kernel_size, module.stride))
    sizes = {number for pair in pairs for number in pair}
    plain = module.padding in (0, (0, 0)) and module.dilation in (1, (1, 1))
    if len(sizes) != 1 or not plain or module.ceil_mode or module.return_indices:
        return None
    size = int(sizes.pop())
    after = (now[0], now[1] // size, now[2] // size)
    return Layer(kind=POOL, before=now, after=after, size=size, stride=size)
