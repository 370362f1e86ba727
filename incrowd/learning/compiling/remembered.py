"""All that code of one's own can hold, to see whether calling it has changed anything."""

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Set
from functools import cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

_INSTALLED = "site-packages", "dist-packages"
_KNOWN = frozenset({"torch", "incrowd", "numpy"} | sys.stdlib_module_names)


def remembered(value: object) -> Any:
    """All that is reachable from a module, a function or any other object, as far as it can be compared: attributes,
    closures, defaults, and the globals and class attributes that its code names.

    Edge cases: what the code of installed packages names is not read, and neither is the content of other modules'
    globals but for names that are used.
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
    """What any other object holds."""
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
    """Whether a module is torch's, Python's or ours, or installed."""
    if (module or "").partition(".")[0] in _KNOWN:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return any(place in file for place in _INSTALLED)
