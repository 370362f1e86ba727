"""Stacks of convolutions with pooling, and Linear layers on top, as a table of layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from incrowd.learning.chain import chained
from incrowd.learning.losses import Canonical, Loss
from incrowd.learning.models import picture_of
from incrowd.learning.program import Dense, Labelled, dense_layers

Picture = tuple[int, int, int]
"""Of a picture: channels, rows, columns."""


@dataclass(frozen=True)
class Groups:
    """Channels in so many groups, each normalised in each picture, and what is added to the variance."""

    groups: int
    eps: float
    affine: bool


@dataclass(frozen=True)
class Convolution:
    """A convolution over `margin` zeros around a picture, normalised by `groups` of channels, rectified if `bent`, and
    the largest of `pool` x `pool`.
    """

    before: Picture
    channels: int
    size: int
    stride: int
    margin: int
    bias: bool
    groups: Groups | None
    bent: bool
    pool: int

    @property
    def vectors(self) -> int:
        """How many parameters it has beside its weight: one number a channel each."""
        return self.bias + 2 * (self.groups is not None and self.groups.affine)

    @property
    def places(self) -> tuple[int, int]:
        """How many rows and columns it has before pooling."""
        rows, columns = ((side + 2 * self.margin - self.size) // self.stride + 1 for side in self.before[1:])
        return rows, columns

    @property
    def after(self) -> Picture:
        """The picture that comes out."""
        rows, columns = self.places
        return self.channels, rows // self.pool, columns // self.pool

    @property
    def window(self) -> int:
        """How many numbers it looks at for one of its own."""
        return self.before[0] * self.size**2


@dataclass(frozen=True)
class Convolutions:
    """A table of layers, and how the outputs of the last are compared with labels."""

    pictures: tuple[Convolution, ...]
    dense: tuple[Dense, ...]
    loss: Canonical


def convolutions_of(module: nn.Module, loss: Loss, examples: Labelled) -> Convolutions | None:
    """The table for what the module computes of such examples and this loss of it, or None if it has other layers,
    another loss, or frozen or tied parameters.
    """
    canonical = loss.fast(examples.labels) if examples.plain else None
    chain = None if canonical is None else chained(module, examples.shape)
    if chain is None or canonical is None:
        return None
    layers = list(chain)
    shape = picture_of(layers[0], examples.shape) if layers else None
    if shape is not None:
        layers.pop(0)
    elif len(examples.shape) == 3:
        shape = examples.shape[0], examples.shape[1], examples.shape[2]
    flat = next((place for place, layer in enumerate(layers) if _flattens(layer)), None)
    if shape is None or flat is None:
        return None
    pictures = _convolutions(layers[:flat], shape)
    if not pictures:
        return None
    channels, rows, columns = pictures[-1].after
    dense = dense_layers(nn.Sequential(*layers[flat + 1 :]), (channels * rows * columns,))
    return Convolutions(pictures, dense, canonical) if dense and rows * columns else None


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _convolutions(layers: Sequence[nn.Module], shape: Picture) -> tuple[Convolution, ...]:
    """The convolutions with what follows each, or none at all if there is something else."""
    found: list[Convolution] = []
    left = list(layers)
    while left:
        first = left.pop(0)
        if not (isinstance(first, nn.Conv2d) and _known(first)) or first.in_channels != shape[0]:
            return ()
        groups = _groups(left[0]) if left else None
        if groups is not None:
            left.pop(0)
        bent, pool = False, 1
        while left and ((type(left[0]) is nn.ReLU and not bent) or (_pool(left[0]) > 1 and pool == 1)):
            after = left.pop(0)
            bent, pool = bent or type(after) is nn.ReLU, max(pool, _pool(after))
        one = Convolution(
            before=shape,
            channels=first.out_channels,
            size=first.kernel_size[0],
            stride=first.stride[0],
            margin=int(first.padding[0]),
            bias=first.bias is not None,
            groups=groups,
            bent=bent,
            pool=pool,
        )
        if min(one.after) < 1:
            return ()
        found.append(one)
        shape = one.after
    return tuple(found)


def _known(layer: nn.Conv2d) -> bool:
    """Whether it is a plain convolution over squares."""
    squares = all(len({*pair}) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    ordinary = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return ordinary and squares and layer.groups == 1 and layer.dilation == (1, 1)


def _groups(layer: nn.Module) -> Groups | None:
    """How a layer normalises, if it does so by groups of channels."""
    return Groups(layer.num_groups, layer.eps, layer.affine) if type(layer) is nn.GroupNorm else None


def _pool(layer: nn.Module) -> int:
    """The side of the squares of which a layer takes the largest value, 1 if it does something else."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return 1
    numbers = {
        number
        for pair in (layer.kernel_size, layer.stride)
        for number in (pair if isinstance(pair, tuple) else (pair,))
    }
    alone = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and len(numbers) == 1
    return int(numbers.pop()) if alone else 1
