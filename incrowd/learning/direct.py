"""Plain steps in which the gradients of large Linear layers are never formed: the product is added to the weight.

A gradient of half a megabyte that is written, read once and forgotten drives what is needed next out of a processor's
caches; that was measured to take longer than its arithmetic.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

_LARGE = 2**15  # weights; gradients of fewer stay in the cache
_ALIKE = 1e-4  # rounding changes a gradient by less, and what else a module does with its weights by more
_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)


class DirectSteps:
    """Steps of a module's parameters against the gradient of a value that it was just used for.

    To autograd the parameters of large Linear layers are constants: what goes into such a layer, and the gradient of
    what comes out, make their step. Only the `others` have gradients.

    Guarantee: a module that does anything else with these parameters (a penalty, tied weights, derivatives within) is
    found out by trying; its layers are left alone.

    Edge cases: what a module does with some examples only is not found out.
    """

    def __init__(self, module: nn.Module, shape: Sequence[int]) -> None:
        self._first: list[tuple[nn.Linear, Tensor, Tensor]] = []  # what went in and came out
        self._later: list[tuple[nn.Linear, Tensor, Tensor]] = []  # what went in, and the gradient of what came out
        self._used: list[nn.Linear] = []
        self._rate: float | None = None  # while gradients are computed for a step
        self.others: list[Tensor] = list(module.parameters())
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear) and _suits(layer)]
        if layers and not self._try(module, layers, shape):
            for layer in layers:
                layer.__dict__.pop("forward", None)
            self.others = list(module.parameters())
            self._forget()

    def step(self, value: Tensor, rate: float) -> None:
        """Move the parameters against the value's gradient, times the rate."""
        # Autograd is slow at filling in zeros where the value does not depend on a parameter.
        wanted = [*self.others, *(outputs for _, _, outputs in self._first)]
        self._rate = rate
        found: Sequence[Tensor | None] = torch.autograd.grad(value, wanted, allow_unused=True)
        begin = len(self.others)
        with torch.no_grad():
            moved = [(one, gradient) for one, gradient in zip(self.others, found, strict=False) if gradient is not None]
            if moved:
                torch._foreach_add_(*map(list, zip(*moved, strict=True)), alpha=-rate)
            for (layer, inputs, _), gradient in zip(self._first, found[begin:], strict=True):
                if gradient is not None:
                    _move(layer, inputs, gradient, rate)
            for layer, inputs, gradient in self._later:
                _move(layer, inputs, gradient, rate)
        self._forget()

    def _forget(self) -> None:
        self._first.clear()
        self._later.clear()
        self._used.clear()
        self._rate = None

    def _try(self, module: nn.Module, layers: Sequence[nn.Linear], shape: Sequence[int]) -> bool:
        """Compare a step of these layers with autograd's, at weights and examples that are nothing special."""
        parameters = list(module.parameters())
        examples = (torch.arange(2 * torch.Size(shape).numel(), device=parameters[0].device) % 3 == 0).float()
        examples = examples.view(2, *shape)
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(_waves(parameter), alpha=0.05)
        starts = [parameter.detach().clone() for parameter in parameters]
        direct = [parameter for layer in layers for parameter in layer.parameters()]
        ours = {id(parameter) for parameter in direct}
        try:
            expected = torch.autograd.grad(_any_value(module(examples)), parameters, materialize_grads=True)
            for layer in layers:
                layer.forward = partial(self._forward, layer)  # type: ignore[method-assign]  # of this layer alone
            self.others = [parameter for parameter in parameters if id(parameter) not in ours]
            value = _any_value(module(examples))
            used = torch.autograd.grad(value, direct, allow_unused=True, retain_graph=True)
            if self._later or any(gradient is not None for gradient in used):
                return False
            self.step(value, -1.0)
        except _REFUSALS:
            return False
        with torch.no_grad():
            off = [now - start - step for now, start, step in zip(parameters, starts, expected, strict=True)]
        return all(float(one.norm()) <= _ALIKE * float(step.norm()) for one, step in zip(off, expected, strict=True))

    def _forward(self, layer: nn.Linear, inputs: Tensor) -> Tensor:
        bias: Tensor | None = layer.bias  # its stub knows of no layer without one
        outputs = functional.linear(inputs, layer.weight.detach(), None if bias is None else bias.detach())
        if outputs.requires_grad:
            seen = partial(self._see, layer, inputs)
            outputs.register_hook(seen)  # type: ignore[no-untyped-call]  # torch does not say its types
            inputs.register_hook(partial(self._finish, layer))  # type: ignore[no-untyped-call]  # as above
            self._used.append(layer)
        elif torch.is_grad_enabled():
            self._first.append((layer, inputs, outputs.requires_grad_()))
        return outputs

    def _see(self, layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> None:
        self._later.append((layer, inputs, gradient))

    def _finish(self, layer: nn.Linear, _gradient: Tensor) -> None:
        """Move a layer as soon as autograd is done with it, when its weight is still in the cache."""
        if self._rate is not None and self._used.count(layer) == 1:
            for number, (one, inputs, gradient) in enumerate(self._later):
                if one is layer:
                    del self._later[number]
                    _move(layer, inputs, gradient, self._rate)
                    return


def _suits(layer: nn.Linear) -> bool:
    plain = type(layer) is nn.Linear and "forward" not in vars(layer)
    return plain and layer.weight.numel() >= _LARGE and not layer.weight._backward_hooks


def _move(layer: nn.Linear, inputs: Tensor, gradient: Tensor, rate: float) -> None:
    """Move the parameters by what went in and the gradient of what came out."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    layer.weight.addmm_(rows.t(), inputs.reshape(-1, inputs.shape[-1]), alpha=-rate)
    bias: Tensor | None = layer.bias
    if bias is not None:
        bias.add_(rows.sum(0), alpha=-rate)


def _any_value(outputs: Tensor) -> Tensor:
    return (outputs * _waves(outputs)).sum()


def _waves(like: Tensor) -> Tensor:
    return torch.arange(like.numel(), dtype=like.dtype, device=like.device).cos_().view(like.shape)
