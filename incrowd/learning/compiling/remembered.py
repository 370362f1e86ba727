"""All that a module holds, to see whether calling it has changed anything."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def remembered(module: nn.Module) -> list[Any]:
    """All that the parts of a module hold, as far as it can be compared."""
    seen: set[int] = set()
    return [_comparable(dict(vars(part)), seen) for part in module.modules()]


def _comparable(value: object, seen: set[int]) -> Any:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Mapping):
        return [(str(key), _comparable(one, seen)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_comparable(one, seen) for one in value]
    if isinstance(value, type) or not hasattr(value, "__dict__") or id(value) in seen:
        return id(value), len(value) if isinstance(value, set) else 0
    seen.add(id(value))
    return id(value), _comparable(dict(vars(value)), seen)
