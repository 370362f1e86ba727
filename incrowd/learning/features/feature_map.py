"""The protocol of feature maps, the simple ones, and your own."""

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from incrowd import _validate
from incrowd.errors import ConfigError, DataError
from incrowd.types import FeatureMap

Values = NDArray[np.float32]
Shape = tuple[int, int]

_TINY = 1e-6
_ROUNDED = 1e-5  # relative to a row: more than float32 loses of a mean, less than any signal


class Named:
    """A map whose settings are its name."""

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)


@dataclass(frozen=True)
class Composed:
    """Maps one after the other."""

    stages: tuple[FeatureMap, ...]

    @property
    def name(self) -> str:
        """The names of all, in order."""
        return " > ".join(stage.name for stage in self.stages)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        for stage in self.stages:
            values = stage(values)
        return values


def compose(*stages: FeatureMap) -> FeatureMap:
    """One map that applies several, the first one first."""
    if not stages:
        raise ConfigError(field="stages", value=stages, remedy="give at least one feature map")
    return Composed(stages)


@dataclass(frozen=True, kw_only=True)
class UnitNorm(Named):
    """Each example as a flat vector of length 1, if `centred` less its mean; zeros and too long ones become zeros."""

    centred: bool = False

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features = as_tensor(values).flatten(1)
        scaled: Values = unit(less_mean(features) if self.centred else features).numpy()
        return scaled


@dataclass(frozen=True, kw_only=True)
class WithConstant(Named):
    """One more feature, the same for every example: a linear model's bias, whose share of a contribution it sets."""

    value: float = 0.1

    def __post_init__(self) -> None:
        _validate.positive(constant=self.value)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features = values.reshape(len(values), -1)
        return np.concatenate([features, np.full((len(features), 1), self.value, np.float32)], axis=1)


@dataclass(frozen=True, eq=False)
class ModuleMap:
    """A frozen torch module."""

    name: str
    module: nn.Module

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        weight = next(self.module.parameters(), torch.empty(0))
        with torch.no_grad():
            outputs = self.module(as_tensor(values).to(weight.device))
            features: Values = outputs.flatten(1).float().cpu().numpy()
        return features


@dataclass(frozen=True, eq=False)
class CallableMap:
    """A user's function."""

    name: str
    function: Callable[[Values], ArrayLike]

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features: Values = np.asarray(self.function(values), dtype=np.float32)
        return features.reshape(len(features), -1)


def from_module(module: nn.Module, *, name: str) -> FeatureMap:
    """A pretrained encoder as a feature map: its outputs, flattened. Its weights must not come from the clients' data.

    The map works on a copy in evaluation mode, on the device of the weights. Its name has `name`, the module's own
    description and a checksum of its weights; give another `name` when the code of the module changes.
    """
    _check_name(name)
    frozen = copy.deepcopy(module).eval().requires_grad_(requires_grad=False)
    digest = hashlib.sha256(repr(frozen).encode())
    for key, tensor in chain(frozen.named_parameters(), frozen.named_buffers()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{key} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return ModuleMap(f"{name} ({type(module).__name__} {digest.hexdigest()[:32]})", frozen)


def from_callable(function: Callable[[Values], ArrayLike], *, name: str) -> FeatureMap:
    """Any pure function from float32 [n, ...] to numbers [n, d]; the cache knows it by `name` alone."""
    _check_name(name)
    return CallableMap(name, function)


def as_tensor(values: Values) -> Tensor:
    """A float32 tensor over the same memory, or over a copy if the array is read-only or not contiguous."""
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def as_images(values: Values, shape: Shape | None) -> Tensor:
    """A tensor [n, height, width] over the same memory where it can be. Flat examples need the shape."""
    found = values.shape[1:]
    if shape is None:
        shape = found[-2:] if len(found) == 2 or (len(found) == 3 and found[0] == 1) else None
    if shape is None:
        raise DataError(
            f"examples of the shape {found} are not grey images: state shape=(height, width) for flat ones, "
            "turn colours into grey values"
        )
    if math.prod(found) != math.prod(shape):
        raise DataError(f"examples have the shape {found}: an image of {shape} has {math.prod(shape)} pixels")
    return as_tensor(values).view(-1, *shape)


def less_mean(rows: Tensor) -> Tensor:
    """Rows less their own mean. A constant row becomes zeros, and not the remainder of rounding."""
    left = rows - rows.mean(dim=1, keepdim=True)
    left[left.norm(dim=1) <= _ROUNDED * rows.norm(dim=1)] = 0
    return left


def unit(features: Tensor) -> Tensor:
    """Rows of length 1, zeros if float32 cannot hold the length: an error would reveal that an example is large."""
    scaled: Tensor = (features / (features.norm(dim=1, keepdim=True) + _TINY)).nan_to_num_(nan=0.0)
    return scaled


def _check_name(name: str) -> None:
    if not name.strip():
        raise ConfigError(
            field="name", value=name, remedy="say what the map computes; the cache tells maps apart by it"
        )
