"""Requirements on torch modules that keep clients and records apart, and working copies of modules."""

import copy
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from incrowd.errors import ConfigError

_MIXING = (nn.modules.batchnorm._BatchNorm,)  # the lazy ones and SyncBatchNorm are of this kind too

_KNOWN = ("torch.nn.modules.", "incrowd.")  # their modules use no other module's weights
_INSTALLED = "site-packages", "dist-packages"
_TRUSTED = frozenset({"torch", "incrowd", "numpy"} | sys.stdlib_module_names)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained, with their names: a tied one once, under its first name."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def plain(module: nn.Module) -> bool:
    """Return whether every parameter is trained, and none is tied to another."""
    every = list(module.named_parameters(remove_duplicate=False))
    return len(trainable(module)) == len(every)


def in_order(layers: nn.Sequential) -> bool:
    """Whether the parameters are the layers' weights and biases in order; one registered anew is not."""
    several = (getattr(layer, name, None) for layer in layers for name in ("weight", "bias"))
    return [id(one) for one in layers.parameters()] == [id(one) for one in several if one is not None]


def known(module: nn.Module) -> bool:
    """Return whether a module is torch's or incrowd's and has no hooks: then it keeps no state between calls."""
    return f"{type(module).__module__}.".startswith(_KNOWN) and not hooked(module)


def hooked(module: nn.Module) -> bool:
    """Return whether a call runs hooks, or an instance's `forward`, besides its class's code."""
    return "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS)


def settled(module: nn.Module) -> nn.Module:
    """Put the module's frozen parts into evaluation mode; other parts stay in their mode."""
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            part.eval()
    return module


def working_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy to train on a device, with `settled` parts; it shares frozen parameters there, which may be large."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    shared = {id(parameter): parameter for parameter in frozen if parameter.device.type == device.type}
    return settled(copy.deepcopy(module, shared)).to(device)


def refuse_unsuitable(module: nn.Module) -> None:
    """Refuse what `incrowd.learning.models.Model` says it refuses."""
    _refuse_parameters(module)
    _refuse_layers(module, _trouble)


def _refuse_layers(module: nn.Module, trouble: Callable[[nn.Module], str | None]) -> None:
    """Refuse a module with layers in trouble, of which this gives the remedy."""
    for name, layer in _ready(module).named_modules():
        remedy = trouble(layer)
        if remedy is not None:
            raise ConfigError(field="module", value=f"{type(layer).__name__} at {name or 'the top'}", remedy=remedy)


def _trouble(layer: nn.Module) -> str | None:
    """The remedy for a layer that does not treat each example alone, or the same way each time."""
    if isinstance(layer, _MIXING) and (layer.training or layer.running_mean is None):
        return "it mixes the examples of a batch; use GroupNorm or LayerNorm, or freeze the part that it is in"
    if layer.training and getattr(layer, "track_running_stats", False):
        return "it keeps running statistics; set track_running_stats=False, or freeze the part that it is in"
    return None


def _refuse_parameters(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            remedy = "its shape is not known yet; run the module once"
        elif parameter.device.type != "cpu":
            remedy = f"it is on {parameter.device}; call module.cpu(), and say in the settings where to compute"
        elif parameter.is_floating_point() and parameter.dtype != torch.float32:
            remedy = f"it is {parameter.dtype}; call module.float()"
        else:
            continue
        raise ConfigError(field="module", value=name, remedy=remedy)
    if not trainable(module):
        frozen = any(True for _ in module.parameters())
        remedy = "all its parameters are frozen; unfreeze some, say module.head.requires_grad_(True)"
        remedy = remedy if frozen else "it has no parameters to train"
        raise ConfigError(field="module", value=type(module).__name__, remedy=remedy)


_turn: Any = threading.RLock()
if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has none
    os.register_at_fork(after_in_child=_turn._at_fork_reinit)  # the thread that held it is not there


def own_turn() -> AbstractContextManager[object]:
    """One thread at a time: torch's global generators belong to the whole process."""
    turn: AbstractContextManager[object] = _turn
    return turn


@contextmanager
def keeping_constants(module: nn.Module, *, whose: str) -> Iterator[None]:
    """Refuse a module that a call changed in buffers or frozen parameters: `whose` data would reach the next."""
    constants = _constants(module)
    versions = {name: one._version for name, one in constants.items()}
    yield
    now = _constants(module)
    for name, one in constants.items():
        if now.get(name) is not one or one._version != versions[name]:
            carried = f"training changes it, which would carry one {whose}'s data to the next"
            raise ConfigError(field="module", value=name, remedy=f"{carried}; make it a constant")


@contextmanager
def remembering_nothing(module: nn.Module, device: torch.device, *, whose: str) -> Iterator[None]:
    """Refuse, besides, a module that drew from torch's global generator."""
    with own_turn():
        drawn = _drawn(device)
        with keeping_constants(module, whose=whose):
            yield
        still = all(map(torch.equal, drawn, _drawn(device)))
    if not still:
        remedy = f"it draws from torch's global generator, which no {whose} has for itself; leave that out"
        raise ConfigError(field="module", value=type(module).__name__, remedy=remedy)


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, from which dropout draws, and restore them afterwards; one thread at a time.

    Edge cases: it does not notice other code that draws from them in another thread meanwhile.
    """
    devices, generators = [], [torch.default_generator]
    if device.type == "cuda":  # pragma: no cover - where there is one
        devices.append(torch.cuda.current_device() if str(device) == "cuda" else device.index)
        generators.append(torch.cuda.default_generators[devices[0]])
    with own_turn(), torch.random.fork_rng(devices=devices):
        for generator in generators:
            generator.manual_seed(seed)
        yield


def _constants(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that training must not change: buffers and frozen parameters."""
    frozen = {name: one for name, one in module.named_parameters() if not one.requires_grad}
    return {**dict(module.named_buffers()), **frozen}


def _drawn(device: torch.device) -> list[Tensor]:
    """The states of torch's global generators that a module on this device may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":  # pragma: no cover - where there is one
        states.append(torch.cuda.get_rng_state(device))
    return states


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a module under torch's name, tied ones under each, in memory of its own."""
    state = module.state_dict()
    return {name: one.detach().clone(memory_format=torch.contiguous_format) for name, one in state.items()}


def load_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a module this whole state; other names or shapes, or two values of a tied parameter, are refused."""
    given = {name: torch.as_tensor(one) for name, one in state.items()}
    try:
        module.load_state_dict(given)
    except RuntimeError as error:
        remedy = f"give the state of the same module, with the names of module.state_dict(): {error}"
        raise ConfigError(field="state_dict", value=f"{len(state)} tensors", remedy=remedy) from error
    for name, one in module.state_dict().items():
        if not torch.equal(one, given[name].to(one)):
            remedy = "it is tied to another, which has other values: give both the same"
            raise ConfigError(field="state_dict", value=name, remedy=remedy)


def has_dropout(module: nn.Module) -> bool:
    """Return whether dropout is active when the module trains."""
    return any(map(_at_work, _ready(module).modules()))


def refuse_dropout(module: nn.Module) -> None:
    """Refuse dropout where records are trained: no record has a seed for it."""
    remedy = (
        "its randomness is torch's global generator, which no record has for itself; set its dropout to 0, "
        "freeze the part that it is in, or call module.eval() before"
    )
    _refuse_layers(module, lambda layer: remedy if _at_work(layer) else None)


def _ready(module: nn.Module) -> nn.Module:
    """A copy with settled parts, which shares the parameters."""
    return settled(copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()}))


def _at_work(layer: nn.Module) -> bool:
    if not layer.training:
        return False
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase):
        return layer.num_layers > 1 and float(layer.dropout) > 0
    return isinstance(layer, nn.MultiheadAttention) and float(layer.dropout) > 0


class ImageLayout(nn.Module):
    """Examples as images whose channels lie together, the fastest arrangement that was measured on a CPU."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.image = (-1, channels, side, side)

    def forward(self, examples: Tensor) -> Tensor:
        """The images [n, channels, side, side]."""
        return examples.reshape(self.image).contiguous(memory_format=torch.channels_last)


def picture_of(layer: nn.Module, shape: Sequence[int]) -> tuple[int, int, int] | None:
    """The pictures, channels first, that a layer makes of such examples by arranging them; None for other layers."""
    sizes: tuple[int, ...]
    if isinstance(layer, ImageLayout):
        sizes = layer.image[1:]
    elif type(layer) is nn.Unflatten and layer.dim == 1:
        first = tuple(int(size) for size in layer.unflattened_size)
        sizes = (*first, *shape[1:]) if math.prod(first) == shape[0] else ()
    else:
        return None
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and math.prod(sizes) == math.prod(shape) else None


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
    """The comparable state that is reachable from a module, a function or any other object: attributes, closures,
    defaults, and the globals and class attributes that its code names.

    Edge cases: it does not read names in installed packages' code, nor other modules' globals that its code does not
    use.
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
        yield [] if _trusted(value.__module__) else dict(vars(value))
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
    yield [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]  # which is empty
    if _trusted(function.__module__):
        return
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        found = function.__globals__[name]
        yield found
        if isinstance(found, ModuleType) and not _trusted(found.__name__):
            yield {name: vars(found)[name] for name in sorted(names & vars(found).keys())}


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
def _trusted(module: str | None) -> bool:
    """Return whether a module is torch's, Python's, incrowd's, or installed."""
    if (module or "").partition(".")[0] in _TRUSTED:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return any(place in file for place in _INSTALLED)
