"""Functions of one's own that settings name: "package:name", imported from a folder."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError

_RAISED = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What functions raise that cannot do what they are asked; errors of ours say more, and go on as they are."""

_ONE_AT_A_TIME = threading.RLock()  # for what follows is of the whole process, and so are Python's modules
_imported_from: dict[str, str] = {}
"""Where modules come from that were imported here, by their first names."""


def call(source: str, arguments: Mapping[str, Any], *, folder: str | None, field: str) -> Any:
    """What the function returns for these arguments.

    Guarantee: where the folder has the module, it is this one, whatever another folder has under the same name.

    Edge cases: a text of another form, a module or a name that is not there, a call that fails: `ConfigError`, which
    says what was raised.
    """
    function = _imported(source, folder=folder, field=field)
    try:
        return function(**arguments)
    except _RAISED as error:
        remedy = f"calling it failed: {type(error).__name__}: {error}"
        raise ConfigError(field=field, value=source, remedy=remedy) from error


def _imported(source: str, *, folder: str | None, field: str) -> Callable[..., Any]:
    package, colon, name = source.partition(":")
    if not (colon and package and name):
        raise ConfigError(field=field, value=source, remedy="write it as package:function")
    if package.split(".")[0] in sys.stdlib_module_names:
        # What Python brings makes neither clients nor modules of torch, but `subprocess:run` would do much else.
        raise ConfigError(field=field, value=source, remedy="it is Python's own: name a function of yours")
    with _importing_from(folder, package):
        try:
            function = getattr(importlib.import_module(package), name)
        except (ImportError, AttributeError) as error:
            where = f"{folder} or " if folder is not None else ""
            remedy = f"it cannot be imported from {where}where Python looks: {error}"
            raise ConfigError(field=field, value=source, remedy=remedy) from error
    if not callable(function):
        raise ConfigError(field=field, value=source, remedy="name a function; this is none")
    result: Callable[..., Any] = function
    return result


@contextmanager
def _importing_from(folder: str | None, package: str) -> Iterator[None]:
    """Let modules in a folder be found first, meanwhile, and none that came from another folder."""
    place = None if folder is None else str(Path(folder).resolve())
    with _ONE_AT_A_TIME:
        if place is not None:
            sys.path.insert(0, place)
            _forget(package, other_than=place)
        try:
            importlib.invalidate_caches()
            yield
        finally:
            if place is not None and place in sys.path:
                sys.path.remove(place)


def _forget(package: str, *, other_than: str) -> None:
    """Python keeps one module of a name, which would be taken for the folder's own."""
    first = package.partition(".")[0]
    if not _has(other_than, first):
        return
    if first not in sys.modules:
        _imported_from[first] = other_than
    elif _imported_from.get(first, other_than) != other_than:
        for name in [name for name in sys.modules if name.partition(".")[0] == first]:
            del sys.modules[name]
        _imported_from[first] = other_than


def _has(folder: str, module: str) -> bool:
    return (Path(folder) / module).is_dir() or (Path(folder) / f"{module}.py").is_file()
