"""Third-party code, by the name under which settings and plans ask for it.

A package names its extensions in entry points of the group `incrowd.<kind>`; a script calls `register`. A name is
looked up among these alone: a plan or a file never says which module to import.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Literal

from incrowd.errors import ConfigError

Kind = Literal[
    "accountants",
    "clips",
    "data_sources",
    "feature_maps",
    "local_algorithms",
    "samplers",
    "server_optimizers",
    "trackers",
]

REMEMBERS = "it gives another result for the same input: let it depend on its arguments alone"

_REGISTERED: dict[tuple[str, str], Any] = {}
_FIRST: dict[tuple[str, str, Any], Any] = {}


def register(kind: Kind, name: str, extension: Any) -> None:
    """Make an extension known in this process."""
    if _REGISTERED.setdefault((kind, name), extension) is not extension:
        remedy = f"another extension of incrowd.{kind} has this name in this process: choose one of its own"
        raise ConfigError(field=kind, value=name, remedy=remedy)


def found(kind: Kind, name: str, *, field: str | None = None, known: Sequence[str] = ()) -> Any:
    """The extension of this name; `known` are the names that incrowd has itself."""
    if (kind, name) not in _REGISTERED:
        points = entry_points(group=f"incrowd.{kind}", name=name)
        if len(points) != 1:
            others = f"give one of {', '.join(known)}, or " if known else ""
            remedy = f"{others}install exactly one package that has this name in its entry points incrowd.{kind}"
            raise ConfigError(field=field or kind, value=name, remedy=remedy)
        (point,) = points
        register(kind, name, point.load())
    return _REGISTERED[kind, name]


def check_unchanged(key: tuple[str, str, Any], found: Any, *, field: str) -> None:
    """Refuse an extension whose result for a synthetic input is not what it was when this process first tried it."""
    import numpy as np

    if not np.array_equal(_FIRST.setdefault(key, found), found, equal_nan=True):
        raise ConfigError(field=field, value=key[1], remedy=REMEMBERS)
