"""Names of a package that are found when they are asked for, so that importing it takes no time."""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from incrowd.errors import ConfigError


def check_platform() -> None:
    """Refuse a platform without fcntl, such as Windows: two processes could spend the same budget where files cannot be
    locked.
    """
    if find_spec("fcntl") is None:
        remedy = "files cannot be locked here (no fcntl): use Linux, macOS, or on Windows its subsystem for Linux (WSL)"
        raise ConfigError(field="platform", value=sys.platform, remedy=remedy)


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """A package's `__getattr__`: each name is imported from the module that it is listed under."""

    def find(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                check_platform()
                return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
