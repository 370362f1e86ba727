"""Papers and benchmarks use what anyone may use: the names that our packages offer in `__all__`, and nothing deeper."""

import ast
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import incrowd

ROOT = Path(__file__).parent.parent
INSIDE = {
    "benchmarks/audit.py",
    "benchmarks/device.py",
    "benchmarks/direction_attacks.py",
    "benchmarks/feature_ablation.py",
    "benchmarks/first_run.py",
    "benchmarks/messages.py",
    "benchmarks/party_memory.py",
    "benchmarks/residual.py",
    "papers/accuracy/measure.py",
    "papers/geyer/handwriting.py",
}
"""What measures parts of ours one by one, which nobody else uses alone, and a feature map that is as ours are."""

OUTSIDE = [
    path
    for folder in ("papers", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if str(path.relative_to(ROOT)) not in INSIDE
]


def beyond_the_doors(text: str) -> Iterator[str]:
    """What a module imports of ours that no package offers."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("incrowd."))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "incrowd":
            door = importlib.import_module(node.module)
            offered = door.__all__ if hasattr(door, "__path__") or node.module == "incrowd.types" else ()
            yield from (f"{node.module}.{name.name}" for name in node.names if name.name not in offered)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_taken_from_beyond_the_doors(path: Path) -> None:
    assert list(beyond_the_doors(path.read_text())) == []


def test_the_door_is_narrow() -> None:
    assert len(set(incrowd.__all__) - {"__version__"}) <= 40
    assert all(getattr(incrowd, name) is not None for name in incrowd.__all__)
    modules = (name for name, value in vars(incrowd).items() if isinstance(value, types.ModuleType))
    assert {name for name in vars(incrowd) if not name.startswith("_")} - {*modules} <= set(incrowd.__all__)
    assert not hasattr(incrowd, "no_such_name")
