"""Models: a torch module, and its trained parameters as one flat vector.

The flat vector, which contributions, releases and checkpoints hold, has the trainable parameters in the order of
``module.named_parameters()``, each row by row in torch's own shape, a tied one once.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from incrowd import _validate
from incrowd._random import Randomness, Stream
from incrowd.errors import ConfigError
from incrowd.learning.modules import ImageLayout, load_state, refuse_unsuitable, trainable, whole_state
from incrowd.privacy.mechanism.clipping import Layout


@dataclass(frozen=True, eq=False)
class Model:
    """A torch module that clients can train: its parameters that require a gradient.

    Training starts from the module's own weights, so that a pretrained start is kept; a `fresh` model draws its weights
    (see `initial`). Frozen parts are in evaluation mode whenever the model is at work; other layers stay in their mode.
    Layers that mix the examples of a batch, or keep running statistics, are refused unless they are frozen.

    Guarantee: training never writes to `module`.
    """

    module: nn.Module
    fresh: bool = False
    layout: Layout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_unsuitable(self.module)
        named = trainable(self.module)
        layout = Layout(names=tuple(name for name, _ in named), shapes=tuple(tuple(p.shape) for _, p in named))
        object.__setattr__(self, "layout", layout)

    def check_unchanged(self) -> None:
        """Refuse a module of which something was frozen, unfrozen or put in another place since the model was made."""
        if tuple(name for name, _ in trainable(self.module)) != self.layout.names:
            remedy = "what is trained of it has changed since; make a new Model of it"
            raise ConfigError(field="module", value=type(self.module).__name__, remedy=remedy)

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.layout.size

    @property
    def parts(self) -> tuple[int, ...]:
        """The sizes of the layers (a weight with its bias) within the flat vector, for clipping layer by layer."""
        layers: dict[str, int] = {}
        for name, size in zip(self.layout.names, self.layout.sizes, strict=True):
            layer = name.rpartition(".")[0]
            layers[layer] = layers.get(layer, 0) + size
        return tuple(layers.values())

    @property
    def weights(self) -> Tensor:
        """The module's own weights as a flat vector, a copy."""
        self.check_unchanged()
        return _vector(self.module)

    def initial(self, randomness: Randomness, *indices: int, init_scale: float = 1.0) -> Tensor:
        """The initial weights of training: the module's own, or fresh ones, times `init_scale`.

        Fresh weights come from the stream ``initialisation``. Linear and convolutional layers are drawn uniformly
        within 1 / sqrt(inputs of one output), as torch does; normalisation layers start at 1 and 0; other modules'
        parameters, and frozen ones, stay as they are in `module`.
        """
        if not self.fresh:
            if init_scale != 1:
                remedy = "the module keeps its own weights; leave it out, or give Model(module, fresh=True)"
                raise ConfigError(field="init_scale", value=init_scale, remedy=remedy)
            return self.weights
        module = copy.deepcopy(self.module)
        stream = randomness.stream("initialisation", *indices)
        with torch.no_grad():
            for layer in module.modules():
                _initialise(layer, stream)
        return init_scale * _vector(module)

    def flat(self, weights: ArrayLike | Tensor) -> Tensor:
        """Weights as the engine uses them: one float32 vector of the model's size."""
        vector = torch.as_tensor(weights).to(torch.float32)
        if vector.shape != (self.size,):
            remedy = f"give one vector of {self.size} weights"
            raise ConfigError(field="weights", value=tuple(vector.shape), remedy=remedy)
        return vector

    def by_parameter(self, flat: Tensor) -> list[Tensor]:
        """A flat vector as the weights of each parameter, in the same memory."""
        places = flat.split_with_sizes(list(self.layout.sizes))
        return [place.view(shape) for place, shape in zip(places, self.layout.shapes, strict=True)]

    def with_weights(self, weights: ArrayLike | Tensor) -> nn.Module:
        """A copy of the module with these weights, in evaluation mode."""
        self.check_unchanged()
        module = copy.deepcopy(self.module).eval()
        with torch.no_grad():
            for (_, parameter), place in zip(trainable(module), self.by_parameter(self.flat(weights)), strict=True):
                parameter.copy_(place)
        return module

    def state_dict(self, weights: ArrayLike | Tensor) -> dict[str, Tensor]:
        """The whole module with these weights under torch's names, a tied parameter under each; all copies."""
        return whole_state(self.with_weights(weights))

    def loaded(self, state_dict: Mapping[str, Tensor]) -> "Model":
        """A copy of the model that starts from this whole state, as `state_dict` and torch give it."""
        module = copy.deepcopy(self.module)
        load_state(module, dict(state_dict))
        return Model(module)


class Stretched(nn.Module):
    """Outputs of -1 to 1 as labels of a stated range."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.middle, self.reach = (low + high) / 2, (high - low) / 2

    def forward(self, outputs: Tensor) -> Tensor:
        """Stretch and move them."""
        return outputs * self.reach + self.middle


def linear(features: int, outputs: int, *, bias: bool = True, label_range: tuple[float, float] | None = None) -> Model:
    """Linear outputs; with a `label_range`, outputs of -1 to 1 mean labels of that range."""
    model = mlp((features, outputs), bias=bias)
    if label_range is None:
        return model
    return Model(nn.Sequential(*model.module.children(), Stretched(*label_range)), fresh=True)


def mlp(widths: Sequence[int], *, bias: bool = True) -> Model:
    """A perceptron with rectified hidden layers, say of widths (784, 600, 100, 10)."""
    if len(widths) < 2:
        raise ConfigError(field="widths", value=widths, remedy="give the number of features, hidden units and outputs")
    for width in widths:
        _validate.count(width=width)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return Model(nn.Sequential(*layers[:-1]), fresh=True)


def small_cnn(*, side: int = 28, channels: int = 1, outputs: int = 10) -> Model:
    """Two convolutions of 5 x 5 (32 and 64 channels) with pooling, then 128 hidden units; 184,586 weights for MNIST."""
    _validate.count(channels=channels, outputs=outputs)
    left = ((side - 4) // 2 - 4) // 2
    if left < 1:
        raise ConfigError(field="side", value=side, remedy="give images of at least 16 x 16 pixels")
    # Pooling before the rectifier is the same function, on a quarter of the numbers.
    layers = {
        "image": ImageLayout(channels, side),
        "conv1": nn.Conv2d(channels, 32, 5),
        "pool1": nn.MaxPool2d(2),
        "bend1": nn.ReLU(),
        "conv2": nn.Conv2d(32, 64, 5),
        "pool2": nn.MaxPool2d(2),
        "bend2": nn.ReLU(),
        "flatten": nn.Flatten(),
        "hidden": nn.Linear(64 * left * left, 128),
        "bend3": nn.ReLU(),
        "output": nn.Linear(128, outputs),
    }
    return Model(nn.Sequential(OrderedDict(layers)), fresh=True)


def _vector(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for _, parameter in trainable(module)])


def _initialise(layer: nn.Module, stream: Stream) -> None:
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        bound = 1 / math.sqrt(layer.weight[0].numel())
        for parameter in layer.parameters(recurse=False):
            uniform = (stream.bits(parameter.numel()) >> np.uint64(11)) * 2.0**-53
            parameter.copy_(torch.from_numpy((2 * uniform - 1) * bound).view(parameter.shape))
    elif isinstance(layer, nn.LayerNorm | nn.GroupNorm) and layer.weight is not None:
        layer.reset_parameters()  # ones and zeros: nothing is drawn
