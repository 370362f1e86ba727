"""Isolation: a custom module or loss carries no state from one client or record to the next.

`OwnCode` sees that a call changes nothing that code can hold. `check_values` and `check_company` try functions that
compute many clients or records at a time: each has to get what it gets alone, in the same bits in any company.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError, IncrowdError
from incrowd.learning.losses import LOSSES, Loss
from incrowd.learning.models import Model
from incrowd.learning.modules import known, trainable, working_copy

_CLOSE = 1e-3  # relative error that rounding may cause
_AT_A_KINK = 0.1  # and so far where it took a rectifier, or the maximum of some, to its other side
_FEW = 1 / 8  # of all gradients: to more than these that does not happen
_PROBES = 7  # companies that are tried
_OTHERS = (1.0, torch.nan, 1e30, 10.0, 0.0, 1e3, torch.inf)  # noise times these is what others hold
_INSTALLED = "site-packages", "dist-packages"
_KNOWN = frozenset({"torch", "incrowd", "numpy"} | sys.stdlib_module_names)


class Unlike(IncrowdError):
    """In company, clients or records would not get what they get alone."""


def check_values(found: Tensor, expected: Tensor) -> None:
    """Refuse gradients, one a row, that differ from those of each alone by more than rounding.

    Rounding may move a ReLU of a synthetic batch across its kink, which changes a gradient a little. So few gradients
    may differ by more.
    """
    off, lengths = (found - expected).norm(dim=1), expected.norm(dim=1)
    close = off <= _CLOSE * lengths + 1e-6
    few = int((~close).sum()) <= _FEW * len(close)
    if not few or not bool((off <= _AT_A_KINK * lengths + 1e-6).all()):
        raise Unlike("side by side their gradients are not what they are one by one")


def check_company(
    compute: Callable[[list[Tensor]], Sequence[Tensor]],
    made_up: Callable[[int, float], list[Tensor]],
    *,
    probes: int = _PROBES,
) -> None:
    """Refuse a function whose results for a unit, a client or a record, change with its place or with the others.

    `made_up` gives tensors [units, ...] of a seed, noise times a factor; `compute` gives results [units, ...] of these.
    Every second unit stays the same in all companies, because a few short results often do not show how they round.
    """
    mine, expected = made_up(0, 1.0), list[Tensor]()
    units = len(mine[0])
    tried = torch.arange(0, units, 2, device=mine[0].device)
    for probe in range(probes):
        where = (tried + probe * (units - 1) // max(1, probes - 1)) % units
        batch = made_up(1 + probe, _OTHERS[probe % len(_OTHERS)])
        for own, theirs in zip(mine, batch, strict=True):
            theirs[where] = own[tried]
        found = [one[where] for one in compute(batch)]
        expected = expected or found
        if not all(map(_same_bits, found, expected)):
            raise Unlike("this machine rounds them by their place, by the others, or anew each time")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of float32 have the same bits, NaN included."""
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


def tried_copy(model: Model, device: torch.device) -> nn.Module:
    """A copy of a model's module for trials.

    Guarantee: weights that `Model.initial` draws are the same in every process, because a trial decides about the last
    bits of an update.

    Edge cases: others are as the module has them.
    """
    module = working_copy(model.module, device)
    start = model.by_parameter(model.initial(SeededRandomness(0)))
    with torch.no_grad():
        for (_, one), drawn in zip(trainable(module), start, strict=True):
            one.copy_(drawn)
    return module


class MadeUp:
    """A block that calls a custom module with synthetic inputs, which may not suit it: an error ends the block and is
    kept in `error`. Edge cases: a Ctrl-C stops the program.
    """

    error: Exception | None = None

    def __enter__(self) -> "MadeUp":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None


class OwnCode:
    """The code of a module, a loss and a local algorithm that is neither torch's nor ours, and all that it can hold.

    Guarantee: a call that changes anything that is reachable from it is refused: attributes, closures, globals, class
    attributes. Modules are trained in copies, which may change.

    Edge cases: state that Python cannot see (a file, another process, a C extension) is beyond this check.
    """

    def __init__(self, module: nn.Module, loss: Loss, algorithm: object = None) -> None:
        self.of_module = not all(map(known, module.modules()))
        self.of_loss = loss not in LOSSES.values()
        self._parts: dict[tuple[str, str], object] = (
            {("module", type(module).__name__): module} if self.of_module else {}
        )
        self._parts |= {("loss", loss.name): loss.value} if self.of_loss else {}
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


def ours(value: object) -> bool:
    """Return whether an object's class is in incrowd."""
    return type(value).__module__.startswith("incrowd.")


def refused(field: str, name: str) -> ConfigError:
    """The error for code that keeps state between calls."""
    remedy = (
        "it remembers what it was called with, or draws numbers, so that one client's data would reach the next: "
        "compute everything from the arguments, and give constants, say class weights, as such"
    )
    return ConfigError(field=field, value=name, remedy=remedy)


def remembered(value: object) -> Any:
    """The state that is reachable from a module, a function or any other object, as far as it can be compared:
    attributes, closures, defaults, and the globals and class attributes that its code names.

    Edge cases: it does not read names in the code of installed packages, nor other modules' globals that its code does
    not use.
    """
    return _comparable(value, {})


def _comparable(value: object, seen: dict[int, object]) -> Any:
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return value
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return id(value), value.tolist() if value.dtype.hasobject else hash(value.tobytes())
    if id(value) in seen:
        return id(value)
    seen[id(value)] = value  # kept, or another object may get its id
    if isinstance(value, Mapping):
        return [(str(key), _comparable(one, seen)) for key, one in list(value.items())]
    if isinstance(value, list | tuple | deque):
        return [_comparable(one, seen) for one in list(value)]
    if isinstance(value, Set):
        return sorted(map(repr, value))
    return id(value), [_comparable(one, seen) for one in _held(value)]


def _held(value: object) -> Iterator[object]:
    """The objects that any other object holds."""
    if isinstance(value, type):
        yield [] if _known(value.__module__) else dict(vars(value))
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif not isinstance(value, ModuleType):
        yield from type(value).__mro__
        yield vars(value) if hasattr(value, "__dict__") else repr(value)
        yield [getattr(value, name, None) for kind in type(value).__mro__ for name in _slots(kind)]


def _of_function(function: FunctionType) -> Iterator[object]:
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))
    yield [_content(cell) for cell in function.__closure__ or ()]
    if _known(function.__module__):
        return
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        found = function.__globals__[name]
        yield found
        if isinstance(found, ModuleType) and not _known(found.__name__):
            yield {name: vars(found)[name] for name in sorted(names & vars(found).keys())}


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _names(code: CodeType) -> Iterator[str]:
    """The names that code uses, that of functions within it, too."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if name not in ("__dict__", "__weakref__")]


@cache
def _known(module: str | None) -> bool:
    """Return whether a module is torch's, Python's, incrowd's, or installed."""
    if (module or "").partition(".")[0] in _KNOWN:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return any(place in file for place in _INSTALLED)
