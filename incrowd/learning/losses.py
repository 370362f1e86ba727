"""Losses of local training, averaged over the examples of a batch.

Several labels for each example, [N, L], need as many outputs; labels of a sequence, [N, T], need outputs
[N, T, classes]. The loss of an example is the mean over its labels, or over the places that count.

The first four belong to generalised linear models with their canonical link: their gradient with respect to the outputs
is mean(outputs) - label, as the fast backend needs.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from incrowd.data.examples import IGNORED
from incrowd.errors import ConfigError, DataError

OutputShape = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Canonical:
    """A loss whose gradient with respect to the outputs is `mean` - `target`, for the fast backend."""

    mean: Callable[..., Tensor]
    """Of outputs [..., outputs] the mean of the label that they stand for (the inverse of the link), into `out`."""
    target: Callable[[Tensor, int], Tensor]
    """Labels and the number of outputs -> [labels, outputs]."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss: `value` takes outputs [B, ...] and labels [B, ...] and gives the mean over the batch, differentiable."""

    name: str
    value: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    canonical: Canonical | None = field(default=None, repr=False)
    fits: Callable[[Tensor, OutputShape], bool] = field(default=lambda _labels, _outputs: True, repr=False)
    needs: str = ""

    def __reduce_ex__(self, protocol: Any) -> Any:  # in another process a loss of ours is the same object, and as fast
        return (as_loss, (self.name,)) if LOSSES.get(self.name) is self else super().__reduce_ex__(protocol)

    def check(self, labels: Tensor, outputs: OutputShape) -> None:
        """Refuse labels, or outputs of a shape (that of one example), that this loss does not fit."""
        if not self.fits(labels, tuple(outputs)):
            several = f"{outputs[0] if outputs else 1} outputs" if len(outputs) < 2 else f"{tuple(outputs)} outputs"
            form = "" if labels.ndim == 1 else f", and labels of the shape {tuple(labels.shape[1:])} for each example"
            raise DataError(f"the loss {self.name!r} does not fit a model with {several}: {self.needs}{form}")


def as_loss(given: "str | Loss | nn.Module | Callable[[Tensor, Tensor], Tensor]") -> Loss:
    """A loss by its name, of outputs and labels with the mean over a batch, or torch's; see `_number_with_number`."""
    if isinstance(given, Loss):
        return given
    if isinstance(given, str):
        if given not in LOSSES:
            near = difflib.get_close_matches(given, LOSSES, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(LOSSES)}"
            raise ConfigError(field="loss", value=given, remedy=remedy)
        return LOSSES[given]
    if isinstance(given, nn.Module):
        return _of_module(given)
    function: object = given
    if not callable(function):
        remedy = f"give a function of outputs and labels, a loss of torch.nn, or one of {', '.join(LOSSES)}"
        raise ConfigError(field="loss", value=given, remedy=remedy)
    return Loss(name=getattr(given, "__name__", type(given).__name__), value=given)


_NUMBER_WITH_NUMBER = (
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.PoissonNLLLoss),
)


def _of_module(module: nn.Module) -> Loss:
    name = type(module).__name__
    if getattr(module, "reduction", "mean") != "mean":
        remedy = 'give reduction="mean": steps are taken along the mean over a batch'
        raise ConfigError(field="loss", value=f"{name}(reduction={module.reduction!r})", remedy=remedy)
    if any(parameter.requires_grad for parameter in module.parameters()):
        remedy = "it has parameters of its own to train: put them into the model, or freeze them"
        raise ConfigError(field="loss", value=name, remedy=remedy)
    usual = type(module) is nn.CrossEntropyLoss and module.weight is None and module.ignore_index == IGNORED
    if usual and module.label_smoothing == 0:
        return CROSS_ENTROPY
    if type(module) is nn.BCEWithLogitsLoss and module.weight is None and module.pos_weight is None:
        return LOGISTIC
    if isinstance(module, _NUMBER_WITH_NUMBER):
        return Loss(name=name, value=partial(_number_with_number, module))
    return Loss(name=name, value=module)


def _number_with_number(module: nn.Module, outputs: Tensor, labels: Tensor) -> Tensor:
    alike = outputs.view_as(labels) if outputs.numel() == labels.numel() else outputs
    value: Tensor = module(alike, labels.to(outputs.dtype))
    return value


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.ndim == 1 or labels.is_floating_point():
        return functional.cross_entropy(outputs, labels)
    places = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    counted = (labels != IGNORED).sum(1).clamp(min=1)
    return (places.view(labels.shape).sum(1) / counted).mean()


def _compared(function: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
    return function(outputs.view_as(labels), labels.to(outputs.dtype))


def _one_hot(labels: Tensor, outputs: int) -> Tensor:
    if labels.is_cpu:
        return _unit_vectors(outputs).index_select(0, labels)
    return torch.eye(outputs, device=labels.device).index_select(0, labels)  # pragma: no cover - where there is one


@lru_cache(maxsize=16)
def _unit_vectors(outputs: int) -> Tensor:
    """Cached, because each client of each round needs them. Never written to."""
    return torch.eye(outputs)


def _column(labels: Tensor, _outputs: int) -> Tensor:
    return labels.to(torch.float32).unsqueeze(1)


def _classes(labels: Tensor, outputs: OutputShape) -> bool:
    if labels.is_floating_point() or tuple(outputs[:-1]) != tuple(labels.shape[1:]) or not outputs:
        return False
    given = labels if labels.ndim == 1 else labels[labels != IGNORED]
    return not len(given) or (int(given.min()) >= 0 and int(given.max()) < outputs[-1])


def _alike(labels: Tensor, outputs: OutputShape) -> bool:
    """Return whether there is an output for every label."""
    return tuple(outputs) == tuple(labels.shape[1:]) or (labels.ndim == 1 and tuple(outputs) == (1,))


def _finite(labels: Tensor, outputs: OutputShape) -> bool:
    return _alike(labels, outputs) and bool(labels.isfinite().all())


_NUMBERS = "give finite labels, and a model with one output for each"

CROSS_ENTROPY = Loss(
    name="cross entropy",
    value=_cross_entropy,
    canonical=Canonical(mean=partial(torch.softmax, dim=-1), target=_one_hot),
    fits=_classes,
    needs="give whole labels from 0 to outputs - 1, or a model with an output for each class, the last in its shape",
)
LOGISTIC = Loss(
    name="logistic",
    value=partial(_compared, functional.binary_cross_entropy_with_logits),
    canonical=Canonical(mean=torch.sigmoid, target=_column),
    fits=lambda labels, outputs: _alike(labels, outputs) and bool(((labels == 0) | (labels == 1)).all()),
    needs="give labels 0 and 1, and a model with one output for each",
)
SQUARED = Loss(
    name="squared",
    value=partial(_compared, lambda outputs, labels: 0.5 * functional.mse_loss(outputs, labels)),
    canonical=Canonical(mean=lambda outputs, *, out: out.copy_(outputs), target=_column),
    fits=_finite,
    needs=_NUMBERS,
)
POISSON = Loss(
    name="poisson",
    value=partial(_compared, functional.poisson_nll_loss),
    canonical=Canonical(mean=torch.exp, target=_column),
    fits=lambda labels, outputs: _finite(labels, outputs) and bool((labels >= 0).all()),
    needs="give finite labels of at least 0, and a model with one output for each",
)
ABSOLUTE = Loss(name="absolute", value=partial(_compared, functional.l1_loss), fits=_finite, needs=_NUMBERS)
HUBER = Loss(name="huber", value=partial(_compared, functional.huber_loss), fits=_finite, needs=_NUMBERS)
LOSSES = {loss.name: loss for loss in (CROSS_ENTROPY, LOGISTIC, SQUARED, POISSON, ABSOLUTE, HUBER)}


def check_label_shares(smoothing: float | None, loss: Loss) -> None:
    """Refuse them for a loss that knows no classes."""
    if smoothing is not None and loss not in (CROSS_ENTROPY, LOGISTIC):
        remedy = f"it is for {CROSS_ENTROPY.name!r} and {LOGISTIC.name!r}, this is {loss.name!r}: leave it out"
        raise ConfigError(field="local.label_shares", value=smoothing, remedy=remedy)


def shares_of(labels: Tensor, classes: int, *, several: bool) -> Tensor:
    """The share of each class among labels, float64; for `several` binary labels the share of ones in each."""
    if several:
        given = labels.to(torch.float64).reshape(len(labels), classes)
        return given.mean(0) if len(labels) else given.new_zeros(classes)
    counted = labels[labels != IGNORED]
    return torch.bincount(counted, minlength=classes).to(torch.float64) / max(1, len(counted))


def logit_offset(labels: Tensor, smoothing: float, *, loss: Loss, outputs: OutputShape) -> Tensor:
    """The logit adjustment of a client by the shares of the classes among its labels; see `adjustment`."""
    several = loss is LOGISTIC
    classes = math.prod(labels.shape[1:]) if several else outputs[-1]
    return adjustment(shares_of(labels, classes, several=several), smoothing, several=several).float()


def adjustment(shares: Tensor, smoothing: float, *, several: bool) -> Tensor:
    """The logit adjustment: log(share + smoothing), for binary labels less that of the other label."""
    if several:
        return ((shares + smoothing) / (1 - shares + smoothing)).log()
    return (shares + smoothing).log()
