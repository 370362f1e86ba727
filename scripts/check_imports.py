"""incrowd starts fast: what takes long to import is imported where it is needed, not at the door."""

import subprocess
import sys

from scripts._common import finish

# Each was measured to take between 0.4 and 3 seconds on two cores.
HEAVY = frozenset({"dp_accounting", "flwr", "matplotlib", "numba", "opacus", "ray", "scipy.stats", "sklearn", "torch"})
DOORS = ("incrowd", "incrowd.cli")


def problems(doors: tuple[str, ...] = DOORS, heavy: frozenset[str] = HEAVY) -> list[str]:
    """The heavy modules that importing each of these doors, in a fresh interpreter, brings along."""
    return [f"import {door} brings {name} along" for door in doors for name in sorted(heavy & _loaded_by(door))]


def _loaded_by(door: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys, {door}; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


if __name__ == "__main__":
    finish(problems())
