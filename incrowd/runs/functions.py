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
_named: set[Path] = set()
"""Folders that modules were asked for from."""


def call(source: str, arguments: Mapping[str, Any], *, folder: str | None, field: str) -> Any:
    """What the function returns for these arguments.

    Guarantee: where the folder has the module, or what that imports, it is this one, whatever has the same name in
    another folder that was named before.

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
    with _importing_from(folder):
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
def _importing_from(folder: str | None) -> Iterator[None]:
    """Let modules in a folder be found first, meanwhile, and none that came from another folder."""
    place = None if folder is None else Path(folder).resolve()
    with _ONE_AT_A_TIME:
        if place is not None:
            _forget(_named - {place}, has=place)  # first, because folders without __init__.py follow the path
            _named.add(place)
            sys.path.insert(0, str(place))
        try:
            importlib.invalidate_caches()
            yield
        finally:
            if place is not None and str(place) in sys.path:
                sys.path.remove(str(place))


def _forget(others: set[Path], *, has: Path) -> None:
    """Python keeps one module of a name: one from another folder would be taken for what this one has."""
    for first in {name.partition(".")[0] for name in sys.modules}:
        if _folder_of(sys.modules.get(first)) in others and _there(has, first):
            for name in [name for name in sys.modules if name.partition(".")[0] == first]:
                del sys.modules[name]


def _folder_of(module: object) -> Path | None:
    """Where a module, or the folder that is a package, lies."""
    file, inside = getattr(module, "__file__", None), list(getattr(module, "__path__", ()))
    found = inside[0] if inside else file
    return Path(found).parent if isinstance(found, str) else None


def _there(folder: Path, module: str) -> bool:
    return (folder / module).is_dir() or (folder / f"{module}.py").is_file()
