"""A user's own feature map: a pretrained torch module, or any function."""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from incrowd.errors import ConfigError
from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.learning.features.images import as_tensor


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

    Guarantee: the module is neither changed nor trained, and later changes of it do not reach the map.
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
    """Any function as a feature map, from float32 [n, ...] to numbers [n, d] (more dimensions are flattened).

    The function must be pure, must not come from the clients' data, and is called from several threads at once. The
    cache knows it by `name` alone: give another when the function changes.
    """
    _check_name(name)
    return CallableMap(name, function)


def _check_name(name: str) -> None:
    if not name.strip():
        raise ConfigError(
            field="name", value=name, remedy="say what the map computes; the cache tells maps apart by it"
        )
