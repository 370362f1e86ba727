"""Names of a package that are found when they are asked for, so that importing it takes no time."""

import importlib
from collections.abc import Callable, Mapping

from incrowd._platform import check_platform


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """A package's `__getattr__`: each name is imported from the module that it is listed under.

    Edge cases: on a platform where nothing could be promised every name is refused (`check_platform`).
    """

    def find(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                check_platform()
                return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
