"""Dropout that draws from a generator of one client's own, in place of torch's, which draws from the global one."""

import copy

import torch
from torch import Tensor, nn

from incrowd.errors import ConfigError
from incrowd.learning.modules import settled


class OwnDropout(nn.Module):
    """nn.Dropout in training mode, with masks from a generator."""

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p = p
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Each number is 0 with probability p, and otherwise divided by 1 - p."""
        if self.p >= 1:
            return x * 0
        return x * torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator).div_(1 - self.p)


def with_own_dropout(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """The module, whose parts are settled, with every nn.Dropout at work drawing from the generator."""
    own: dict[int, OwnDropout] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if _replaceable(layer) and _at_work(layer):
            used = own.setdefault(id(layer), OwnDropout(float(layer.p), generator))
            if not name:
                return used
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, used)
    return module


def has_dropout(module: nn.Module) -> bool:
    """Return whether dropout is active when the module trains."""
    return any(map(_at_work, _ready(module).modules()))


def refuse_dropout(module: nn.Module, *, whose: str, own: bool = False) -> None:
    """Refuse dropout where the training of `whose` has no seed for it: with `own`, there is one for nn.Dropout."""
    for name, layer in _ready(module).named_modules():
        if _at_work(layer) and not (own and _replaceable(layer)):
            remedy = (
                f"its randomness is torch's global generator, which no {whose} has for itself; set its dropout to 0, "
                "freeze the part that it is in, or call module.eval() before"
            )
            remedy += "; nn.Dropout in a place of its own may stay" if own else ""
            kind = f"{type(layer).__name__} at {name or 'the top'}"
            raise ConfigError(field="module", value=kind, remedy=remedy)


def _ready(module: nn.Module) -> nn.Module:
    """A copy with settled parts, which shares the parameters."""
    return settled(copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()}))


def _replaceable(layer: nn.Module) -> bool:
    return type(layer) is nn.Dropout


def _at_work(layer: nn.Module) -> bool:
    if not layer.training:
        return False
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase):
        return layer.num_layers > 1 and float(layer.dropout) > 0
    return isinstance(layer, nn.MultiheadAttention) and float(layer.dropout) > 0
