"""One name, one thing: no two classes, type variables or type aliases of the package have the same name.

An underscore in front does not make another name of it: a reader would still have two things in mind.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from scripts._common import ROOT, finish, python_files

FOLDERS = ("incrowd",)
_TYPE = re.compile(r"_*[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def problems(root: Path) -> list[str]:
    """The names that two things below `root` have, one line each."""
    places: dict[str, list[str]] = {}
    for path in python_files(root, FOLDERS):
        for name, line in _named(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(name.lstrip("_"), []).append(f"{path.relative_to(root)}:{line}")
    return [
        f"{name} is the name of {len(where)} things: {', '.join(where)}"
        for name, where in sorted(places.items())
        if len(where) > 1
    ]


def _named(module: ast.Module) -> Iterator[tuple[str, int]]:
    """The classes of a module, wherever they are, and its own type aliases, each with its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and _TYPE.fullmatch(target.id):
                yield target.id, statement.lineno


if __name__ == "__main__":
    finish(problems(ROOT))
