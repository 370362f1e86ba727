"""The path for a Sequential with large Linear layers, whose gradients are never formed: the product is added to the
weight.

A gradient of half a megabyte that is written, read once and forgotten drives what is needed next out of a processor's
caches; that was measured to take longer than its arithmetic.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from incrowd.learning.modules import hooked, known, plain, trainable
from incrowd.learning.paths.autograd import Autograd, Steps, descend
from incrowd.learning.paths.path import TrainingTask
from incrowd.settings.local import Local

_LARGE = 2**15  # weights; gradients of fewer stay in the cache


def make(task: TrainingTask) -> "Direct | None":
    """The path, if there are such layers and nothing but the gradient makes a step."""
    return Direct(task) if task.local.plain and _large(task.model.module) else None


class Direct(Autograd):
    """As `Autograd`, with `DirectSteps`."""

    def steps(self, module: nn.Module) -> Steps:
        """See `Autograd.steps`."""
        return DirectSteps(module, self.task.local)


class DirectSteps:
    """Steps of a module's parameters against the gradient of a value that it was just used for.

    To autograd the parameters of large Linear layers are constants: what goes into such a layer, and the gradient of
    what comes out, make their step. Only the `others` have gradients.

    Guarantee: this happens only where a Sequential calls the layer, between modules of torch's that do not work in
    place, and where no parameter is frozen or tied, so that nothing else is done with its parameters. All other modules
    keep gradients of everything that is trained.
    """

    def __init__(self, module: nn.Module, local: Local) -> None:
        self._first: list[tuple[nn.Linear, Tensor, Tensor]] = []  # what went in and came out
        self._rate = local.learning_rate
        layers = _large(module)
        ours = {id(parameter) for layer in layers for parameter in layer.parameters()}
        self.others: list[Tensor] = [one for _, one in trainable(module) if id(one) not in ours]
        for layer in layers:
            layer.forward = partial(self._forward, layer)  # type: ignore[method-assign]  # of this layer alone

    def begin(self, starts: Sequence[Tensor]) -> None:
        """See `Steps.begin`."""

    def step(self, value: Tensor) -> None:
        """See `Steps.step`."""
        wanted = [*self.others, *(outputs for _, _, outputs in self._first)]
        found: Sequence[Tensor | None] = torch.autograd.grad(value, wanted, allow_unused=True)
        begin = len(self.others)
        with torch.no_grad():
            descend(self.others, found[:begin], self._rate)
            for (layer, inputs, _), gradient in zip(self._first, found[begin:], strict=True):
                if gradient is not None:
                    _move(layer, inputs, gradient, self._rate)
        self._first.clear()

    def _forward(self, layer: nn.Linear, inputs: Tensor) -> Tensor:
        bias: Tensor | None = layer.bias  # its stub knows of no layer without one
        outputs = functional.linear(inputs, layer.weight.detach(), None if bias is None else bias.detach())
        if outputs.requires_grad:
            gradients: list[Tensor] = []
            outputs.register_hook(gradients.append)  # type: ignore[no-untyped-call]  # torch does not say its types
            inputs.register_hook(partial(self._finish, layer, inputs.detach(), gradients))  # type: ignore[no-untyped-call]  # as above
        elif torch.is_grad_enabled():
            self._first.append((layer, inputs, outputs.requires_grad_()))
        return outputs

    def _finish(self, layer: nn.Linear, inputs: Tensor, gradients: list[Tensor], _gradient: Tensor) -> None:
        """Move a layer as soon as autograd is done with it, when its weight is still in the cache."""
        with torch.no_grad():
            _move(layer, inputs, gradients.pop(), self._rate)


def _large(module: nn.Module) -> list[nn.Linear]:
    """The large Linear layers of a Sequential of known modules."""
    leaves = _leaves(module)
    if type(module) is not nn.Sequential or not all(map(_plain, leaves)) or not plain(module):
        return []
    linear = (leaf for leaf in leaves if type(leaf) is nn.Linear)
    return [layer for layer in linear if layer.weight.numel() >= _LARGE and not layer.weight._backward_hooks]


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential or hooked(module):
        return [module]
    return [leaf for child in module for leaf in _leaves(child)]


def _plain(leaf: nn.Module) -> bool:
    return known(leaf) and not getattr(leaf, "inplace", False)


def _move(layer: nn.Linear, inputs: Tensor, gradient: Tensor, rate: float) -> None:
    """Move the parameters by what went in and the gradient of what came out."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    layer.weight.addmm_(rows.t(), inputs.reshape(-1, inputs.shape[-1]), alpha=-rate)
    bias: Tensor | None = layer.bias
    if bias is not None:
        bias.add_(rows.sum(0), alpha=-rate)
