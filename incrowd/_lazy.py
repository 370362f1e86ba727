"""Names of a package that are found when they are asked for, so that importing it takes no time."""

import importlib
from collections.abc import Callable, Mapping


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """A package's `__getattr__`: each name is imported from the module that it is listed under."""

    def find(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
