"""Dry runs of custom code on synthetic examples, before anything real is read or paid for.

`tried` refuses a model or a loss that does not fit. `OwnCode` sees that a call changes nothing that code can hold.
`check_values` and `check_company` try functions that compute many clients or records at a time: each has to get what it
gets alone, in the same bits in any company.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from incrowd._random import SeededRandomness
from incrowd.data.examples import IGNORED, Inputs, each, named
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.learning.execution import one_thread
from incrowd.learning.inputs import calling, chosen, meant, noise, shown, zeros
from incrowd.learning.losses import CROSS_ENTROPY, LOSSES, Loss, OutputShape
from incrowd.learning.models import Model
from incrowd.learning.modules import known, ours, own_turn, refused, remembered, trainable, working_copy

_CLOSE = 1e-3  # relative error that rounding may cause
_AT_A_KINK = 0.1  # and so far where it took a rectifier, or the maximum of some, to its other side
_FEW = 1 / 8  # of all gradients: to more than these that does not happen
PLACEMENTS = 16  # companies of records that are tried at least
_OTHERS = (1.0, torch.nan, 1e30, 10.0, 0.0, 1e3, torch.inf)  # noise times these is what others hold


class Unlike(IncrowdError):
    """In company, clients or records would not get what they get alone."""


def check_values(found: Tensor, expected: Tensor) -> None:
    """Refuse gradients, one a row, that differ from the expected ones by more than rounding, or a few by a kink."""
    off, lengths = (found - expected).norm(dim=1), expected.norm(dim=1)
    close = off <= _CLOSE * lengths + 1e-6
    few = int((~close).sum()) <= _FEW * len(close)
    if not few or not bool((off <= _AT_A_KINK * lengths + 1e-6).all()):
        raise Unlike("side by side their gradients are not what they are one by one")


def check_company(
    compute: Callable[[Any], Sequence[Tensor]],
    made_up: Callable[[int, int, float], Any],
    *,
    counts: Sequence[int],
    tested: int,
    alone: bool,
    seed: int = 0,
) -> None:
    """Refuse a function whose results for a unit, a client or a record, change with its place or with the others.

    `compute` gives results [units, ...] of `made_up`, what so many units hold (of a seed, noise times a factor). So
    many units are `tested` in every second place of companies of these `counts`, and `alone`, where that can be.
    """
    mine, turns = made_up(tested, seed, 1.0), max(PLACEMENTS, len(counts)) if alone else len(_OTHERS)
    expected: list[Tensor] = []
    if alone:
        several = [compute(tree_map(lambda one, row=row: one[row : row + 1], mine)) for row in range(tested)]
        expected = [torch.cat(one) for one in zip(*several, strict=True)]
    for turn in range(turns):
        count = counts[turn % len(counts)]
        batch = made_up(count, seed + 1000 + turn, _OTHERS[(turn + seed) % len(_OTHERS)])
        device = tree_leaves(batch)[0].device
        where = (torch.arange(0, count, 2, device=device) + turn * ((count - 1) // turns | 1)) % count
        which = torch.arange(len(where), device=device) % tested
        for own, theirs in zip(tree_leaves(mine), tree_leaves(batch), strict=True):
            theirs[where] = own[which]
        found = [one[where] for one in compute(batch)]
        expected = expected or found
        if not all(_same_bits(one, other[which]) for one, other in zip(found, expected, strict=True)):
            raise Unlike("this machine rounds them by their place, by the others, or anew each time")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of floats have the same bits, NaN included."""
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


def tried_copy(model: Model, device: torch.device) -> nn.Module:
    """A copy of a model's module for trials, with weights that are the same in every process."""
    module = working_copy(model.module, device)
    start = model.by_parameter(model.initial(SeededRandomness(0)))
    with torch.no_grad():
        for (_, one), drawn in zip(trainable(module), start, strict=True):
            one.copy_(drawn)
    return module


class MadeUp:
    """A block that calls a custom module with synthetic inputs: an error, but no Ctrl-C, ends it and is in `error`."""

    error: Exception | None = None

    def __enter__(self) -> "MadeUp":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None


class OwnCode:
    """The code of a module, a loss and a local algorithm that is neither torch's nor ours, and all that it can hold.

    Guarantee: a call that changes anything that Python can reach from it is refused: attributes, closures, globals,
    class attributes. Modules are trained in copies, which may change.
    """

    def __init__(self, module: nn.Module, loss: Loss, algorithm: object = None) -> None:
        self.of_module = not all(map(known, module.modules()))
        self.of_loss = loss not in LOSSES.values()
        self._parts: dict[tuple[str, str], object] = {}
        if self.of_module:
            self._parts["module", type(module).__name__] = module
        if self.of_loss:
            self._parts["loss", loss.name] = loss.value
        if algorithm is not None and not ours(algorithm):
            self._parts["algorithm", type(algorithm).__name__] = algorithm

    @property
    def names(self) -> list[str]:
        """Each part in words. A clip bounds any module, so modules are not among them."""
        return [f"{field} {name}" for field, name in self._parts if field != "module"]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse code whose state a block has changed."""
        before = {key: remembered(one) for key, one in self._parts.items()}
        yield
        for (field, name), one in self._parts.items():
            if remembered(one) != before[field, name]:
                raise refused(field, name)


_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError, AssertionError)
_SEVERAL = 3
_TOLERANCE = 1e-3  # far above the rounding of float32, far below what another example would change
_SHOWN = 1024  # examples at a time, where all have to be


def tried(model: Model, features: Inputs, labels: Tensor, loss: Loss, *, each_alone: bool, what: str) -> OutputShape:
    """Refuse a model or a loss that does not fit such features and labels; give the shape of an example's outputs.

    Records need `each_alone`: it also refuses a module whose examples change each other's outputs, and a loss that is
    not the mean over the examples. `what` is what an example is called.

    Guarantee: it reads only shapes and types of features.
    """
    model.check_unchanged()
    module = working_copy(model.module, torch.device("cpu"))
    with _quietly():
        outputs = _outputs(module, features, what)
        if len(labels):
            loss.check(labels, outputs.shape[1:])
        _check_loss(loss, outputs, labels, each_alone=each_alone)
        _check_memory(OwnCode(model.module, loss), model, features, loss, outputs, labels)
        if each_alone:
            _check_module(module, features)
        return tuple(outputs.shape[1:])


def tried_for_classes(model: Model, features: Inputs, labels: Tensor, classes: int, loss: Loss) -> None:
    """Refuse a model without an output for each stated class; a class that no client has is not revealed."""
    outputs = tried(model, features, labels[:0], loss, each_alone=False, what="examples")
    if loss is CROSS_ENTROPY and len(outputs) == labels.ndim and outputs[-1] != classes:
        raise _refused(f"it has {outputs[-1]} outputs", f"there are {classes} classes: give one output for each")
    every = torch.arange(classes).to(labels.dtype).view(-1, *[1] * (labels.ndim - 1))
    loss.check(every.expand(-1, *labels.shape[1:]), outputs)


def tried_with_tokens(model: Model, features: Inputs, *, what: str) -> None:
    """Refuse whole numbers that a model has no place for, as tokens beyond its embedding, before a payment.

    It sees the smallest and the largest number of each place; if it cannot take these, it sees all examples.
    """
    first = next(iter(named(features).values()))
    count = len(first)
    if not count or all(one.dtype != torch.int64 for one in named(features).values()):
        return
    module = working_copy(model.module, torch.device("cpu"))
    call = calling(module, features)

    def fails(made_up: Inputs) -> bool:
        with suppress(Exception), _quietly(), torch.no_grad():
            call(meant(each(lambda one: one.cpu(), made_up), scale=1, offset=0))
            return False
        return True

    if not fails(each(_extremes, features)):
        return
    for begin in range(0, count, _SHOWN):
        rows = torch.arange(begin, min(begin + _SHOWN, count), device=first.device)
        if fails(chosen(features, rows)):  # the text of its error may hold a client's token
            raise DataError(
                f"the model cannot take the whole numbers that some {what} have: give its Embedding a place for every "
                "token, or all tokens that it does not know one number of their own"
            )


def _extremes(one: Tensor) -> Tensor:
    """Two examples: the smallest whole numbers in each place, and the largest."""
    if one.dtype != torch.int64:
        return one.new_zeros(2, *one.shape[1:])
    return torch.stack([one.amin(0), one.amax(0)])


@contextmanager
def _quietly() -> Iterator[None]:
    """One thread, because forked processes would wait for threads that the parent started."""
    forked = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    with own_turn(), one_thread(), forked, warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        yield


def _outputs(module: nn.Module, features: Inputs, what: str) -> Tensor:
    """The outputs for two examples of zeros."""
    made_up = meant(each(lambda one: one.cpu(), zeros(features, 2)), scale=1, offset=0)
    try:
        outputs = calling(module, features)(made_up)
    except _FAILURES as error:
        hint = "let its first layer fit such examples"
        if any(one.dtype == torch.int64 for one in named(features).values()):
            hint = "features are whole numbers, which stay such: give quantities as float32"
        raise DataError(f"the model cannot take {what} of the shape {shown(features)}: {error}; {hint}") from error
    if not isinstance(outputs, Tensor):
        one = "output.logits" if hasattr(outputs, "logits") else "the tensor that is wanted"
        one = "the one that is wanted, say output[0]" if type(outputs) in (tuple, list) else one
        raise _refused(f"its output is a {type(outputs).__name__}", f"wrap it in a module whose forward returns {one}")
    if outputs.ndim == 0 or len(outputs) != 2 or not outputs.is_floating_point():
        found = f"its output for 2 {what} is {outputs.dtype} of the shape {tuple(outputs.shape)}"
        raise _refused(found, "give one row of float32 outputs for each")
    if not outputs.requires_grad:
        raise _refused("its output depends on nothing that is trained", "is a part frozen, or detached, by mistake?")
    return outputs.detach()


def _refused(found: str, remedy: str) -> ConfigError:
    return ConfigError(field="module", value=found, remedy=remedy)


def _check_loss(loss: Loss, outputs: Tensor, labels: Tensor, *, each_alone: bool) -> None:
    made_up, several = _made_up(outputs, _SEVERAL), _labels(labels, outputs)
    ignoring = several.clone()
    if labels.ndim > 1 and not labels.is_floating_point():
        ignoring[0, 1:] = IGNORED
    for targets in (several, ignoring):
        try:
            value: Any = loss.value(made_up, targets)
            apart = [loss.value(made_up[i : i + 1], targets[i : i + 1]) for i in range(_SEVERAL)] if each_alone else []
        except (*_FAILURES, UserWarning) as error:
            shapes = f"outputs of the shape {tuple(made_up.shape)} and labels of the shape {tuple(targets.shape)}"
            raise ConfigError(field="loss", value=loss.name, remedy=f"it fails for {shapes}: {error}") from error
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ConfigError(field="loss", value=loss.name, remedy="give one differentiable number for a batch")
        if each_alone and not torch.allclose(value, torch.stack(apart).mean(), rtol=_TOLERANCE, atol=1e-6):
            remedy = (
                "the loss of a batch is not the mean of what its records give alone (a sum, weights divided by their "
                "total, or labels that are left out of the count?): give one that is"
            )
            raise ConfigError(field="loss", value=loss.name, remedy=remedy)


def _check_memory(own: OwnCode, model: Model, features: Inputs, loss: Loss, outputs: Tensor, labels: Tensor) -> None:
    """Call both with A, with B and with A again. A module is called in a fresh copy, as every client has one."""
    drawn = torch.get_rng_state()

    def of_module(count: int) -> Tensor:
        module, generator = working_copy(model.module, torch.device("cpu")), torch.Generator().manual_seed(count)
        made_up = meant(noise(features, count, generator=generator), scale=1, offset=0)
        torch.set_rng_state(drawn)
        with torch.no_grad():
            found: Tensor = calling(module, features)(made_up)
            return found

    def of_loss(count: int) -> Tensor:
        made_up = _made_up(outputs, count)
        value = loss.value(made_up, _labels(labels, outputs)[:count])
        gradient: Tensor = torch.autograd.grad(value, made_up)[0]
        return torch.cat([value.detach().view(1), gradient.flatten()])

    calls: list[tuple[str, str, Callable[[int], Tensor]]] = [
        ("module", type(model.module).__name__, of_module),
        ("loss", loss.name, of_loss),
    ]
    for field, name, call in calls[not own.of_module : 1 + own.of_loss]:
        found = []
        with suppress(Exception):  # it may not be for such numbers, nor for one example alone
            found.append(call(_SEVERAL))  # state that is made once, at the first call, is fine
        with own.unchanged():
            for count in (1, _SEVERAL):
                with suppress(Exception):
                    found.append(call(count))
        if len(found) > 1 and not torch.equal(found[0].nan_to_num(), found[-1].nan_to_num()):
            raise refused(field, name)


def _made_up(outputs: Tensor, count: int) -> Tensor:
    """Outputs of noise, for so many examples."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *outputs.shape[1:], generator=generator).requires_grad_()


def _labels(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels of the type and shape of these, that differ: classes of the outputs, or zeros and ones."""
    count = torch.zeros(_SEVERAL, *labels.shape[1:]).numel()
    last = outputs.shape[-1] if outputs.ndim > 1 else 1
    classes = 2 if labels.is_floating_point() else max(last, 1)
    return (torch.arange(count) % classes).view(_SEVERAL, *labels.shape[1:]).to(labels.dtype)


def _check_module(module: nn.Module, features: Inputs) -> None:
    """Check with synthetic examples that an example's outputs are the same alone and in a batch."""
    drawn, call = noise(features, _SEVERAL, generator=torch.Generator().manual_seed(0)), calling(module, features)
    made_up = meant(drawn, scale=1, offset=0)
    try:
        with torch.no_grad():
            together, alone = call(made_up), call(each(lambda one: one[:1].clone(), made_up))
    except _FAILURES:
        return  # numbers that this module is not for: zeros have been tried
    if not torch.allclose(together[:1], alone, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        remedy = "normalise over each record alone, say with LayerNorm or GroupNorm"
        raise _refused("its output for a record changes with the records around it", remedy)
