"""The frozen layers that a model begins with: their output for an example never changes."""

import copy

import torch
from torch import Tensor, nn

from incrowd.data.examples import Inputs, single
from incrowd.learning.arithmetic import ieee
from incrowd.learning.inputs import meant, zeros
from incrowd.learning.modules import has_dropout, known, settled

_SEVERAL = 3
_TOLERANCE = 1e-3  # far above the rounding of float32, far below what another example would change


def divided(module: nn.Module) -> tuple[nn.Module | None, nn.Sequential]:
    """The frozen layers that a Sequential begins with, a copy, and the rest of it; None if there are none."""
    # Settled as a whole: dropout rests with the frozen part that it is in.
    layers = _layers(settled(copy.deepcopy(module, {id(one): one for one in module.parameters()})))
    count = next((place for place, layer in enumerate(layers) if not _frozen(layer)), 0)
    frozen, rest = nn.Sequential(*copy.deepcopy(layers[:count])), nn.Sequential(*layers[count:])
    return (frozen if any(True for _ in frozen.parameters()) else None), rest


def made_of_one(frozen: nn.Module, features: Inputs, *, scale: float, offset: float) -> tuple[int, ...] | None:
    """The shape of the layers' output for one example; None if they give no row of numbers for each example alone.

    Edge cases: layers that look along the batch (attention with batch_first=False, say) show with synthetic examples.
    """
    generator = torch.Generator().manual_seed(0)
    several = single(zeros(features, _SEVERAL))
    drawn = torch.randint(0, 2, several.shape, generator=generator).to(several)
    made_up = single(meant(drawn, scale=scale, offset=offset))
    try:
        with torch.no_grad(), ieee(several.device.type), torch.random.fork_rng(devices=[]):
            made, alone = frozen(made_up), frozen(made_up[:1].clone())
    except (RuntimeError, IndexError):  # the layers are for other numbers; zeros have been tried before
        return None
    if not isinstance(made, Tensor) or made.dtype != torch.float32 or made.ndim < 2 or len(made) != _SEVERAL:
        return None
    apart = torch.allclose(made[:1], alone, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    return tuple(made.shape[1:]) if apart else None


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a Sequential, nested ones included, in order. Any other module is one layer."""
    if type(module) is not nn.Sequential or not known(module) or list(module.parameters(recurse=False)):
        return [module]
    # Not children(), which leaves out a layer that comes again.
    return [layer for child in module for layer in _layers(child)]


def _frozen(layer: nn.Module) -> bool:
    """Return whether a layer is always the same function of each example."""
    if any(parameter.requires_grad for parameter in layer.parameters()):
        return False
    return all(map(known, layer.modules())) and not has_dropout(layer)
