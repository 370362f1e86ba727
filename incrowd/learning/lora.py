"""Low-rank adapters (LoRA, Hu et al. 2021): fine-tune a frozen module through a few small matrices.

An adapted Linear layer computes ``base(x) + alpha / rank * up(down(x))``. Only `down` and `up` are trained, so that a
contribution holds only their numbers, and the noise covers no others.
"""

import copy
import fnmatch
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from incrowd import _validate
from incrowd._random import SeededRandomness, Stream
from incrowd.errors import ConfigError


class Adapted(nn.Module):
    """A frozen Linear layer with an adapter of low rank."""

    def __init__(self, base: nn.Linear, down: Tensor, *, alpha: float) -> None:
        super().__init__()
        rank = len(down)
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.factor = alpha / rank
        with torch.no_grad():
            self.down.weight.copy_(down)
            self.up.weight.zero_()

    @property
    def weight(self) -> Tensor:
        """The weight of the Linear layer that computes the same: some of torch's modules ask for it."""
        return torch.addmm(self.base.weight, self.up.weight, self.down.weight, alpha=self.factor)

    @property
    def bias(self) -> Tensor | None:
        """The bias of that layer."""
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the layer and its adapter."""
        outputs: Tensor = functional.linear(x, self.base.weight, self.base.bias) + self.factor * self.up(self.down(x))
        return outputs


def lora(
    module: nn.Module,
    rank: int = 4,
    alpha: float | None = None,
    on: Sequence[str] = ("query", "value"),
    *,
    seed: int = 0,
) -> nn.Module:
    """A copy of a module in which everything is frozen but adapters of a rank on some of its Linear layers.

    `on` has names of layers ("encoder.0.query"), their ends ("query"), or patterns ("encoder.*.query"). `alpha` is
    `rank` unless given. The adapters' first matrices follow from `seed`, which is public. To train a part besides, say
    a new head, call ``adapted.head.requires_grad_(True)``.

    Guarantee: at the start the copy computes what the module computes in evaluation mode, and the module is not
    changed.
    """
    _validate.count(rank=rank)
    alpha = float(rank) if alpha is None else alpha
    _validate.positive(alpha=alpha)
    adapted = copy.deepcopy(module).requires_grad_(requires_grad=False).eval()
    stream = SeededRandomness(seed=seed).stream("adapters")
    layers: dict[int, Adapted] = {}
    for name, base in _chosen(adapted, (on,) if isinstance(on, str) else on).items():
        if rank > min(base.in_features, base.out_features):
            remedy = f"{name} has {base.in_features} inputs and {base.out_features} outputs: give no more than either"
            raise ConfigError(field="rank", value=rank, remedy=remedy)
        if id(base) not in layers:
            layers[id(base)] = Adapted(base, _down(base, rank, stream), alpha=alpha).eval()
        adapted = _put(adapted, name, layers[id(base)])
    return adapted


def merged(module: nn.Module) -> nn.Module:
    """A copy of a module with its adapters folded into plain Linear layers, for use elsewhere."""
    plain = copy.deepcopy(module)
    layers = {name: one for name, one in plain.named_modules(remove_duplicate=False) if isinstance(one, Adapted)}
    if not layers:
        raise ConfigError(field="module", value=type(module).__name__, remedy="it has no adapters: give what lora made")
    weights = {name: nn.Parameter(layer.weight.detach(), requires_grad=False) for name, layer in layers.items()}
    for name, layer in layers.items():
        layer.base.weight = weights[name]
        plain = _put(plain, name, layer.base)
    return plain


def _down(base: nn.Linear, rank: int, stream: Stream) -> Tensor:
    """The first matrix of an adapter, drawn as torch draws those of its own layers."""
    uniform = (stream.bits(rank * base.in_features) >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy((2 * uniform - 1) / math.sqrt(base.in_features)).view(rank, -1)


def _put(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The module with a layer in the place of this name."""
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)
    return module


def _chosen(module: nn.Module, on: Sequence[str]) -> dict[str, nn.Linear]:
    """The Linear layers that are meant, by name."""
    layers = {name: one for name, one in module.named_modules(remove_duplicate=False) if isinstance(one, nn.Linear)}
    there = ", ".join(name or "(the module itself)" for name in layers) or "none"
    for pattern in on:
        if not any(_means(pattern, name) for name in layers):
            raise ConfigError(field="on", value=pattern, remedy=f"no Linear layer is called so; there are: {there}")
    if not on:
        raise ConfigError(field="on", value=on, remedy=f"name at least one Linear layer; there are: {there}")
    ours = {id(layer) for name, layer in layers.items() if any(_means(pattern, name) for pattern in on)}
    return {name: layer for name, layer in layers.items() if id(layer) in ours}  # in every place of a layer


def _means(pattern: str, name: str) -> bool:
    return name == pattern or name.endswith(f".{pattern}") or fnmatch.fnmatchcase(name, pattern)
