"""What the checks share: which files are ours, and how a check ends."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("incrowd", "papers", "benchmarks", "tests", "scripts", "examples", "docs")


def python_files(root: Path, folders: Iterable[str] = FOLDERS) -> Iterator[Path]:
    """Our Python files below these folders of `root`, in order."""
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def finish(problems: list[str]) -> None:
    """Prints the problems and ends the process: status 1 when there are any."""
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)
