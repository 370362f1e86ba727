"""The house is small: no module over 500 lines, no function over 60 without its docstring or with over 8 parameters."""

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts._common import ROOT, finish, python_files

MODULE_LINES = 500
FUNCTION_LINES = 60
PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(root: Path) -> list[str]:
    """What is too large below `root`, one line each."""
    return [problem for path in python_files(root) for problem in _in_module(path, path.relative_to(root))]


def _in_module(path: Path, name: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MODULE_LINES:
        yield f"{name}: {lines} lines, at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            yield from _in_function(node, f"{name}:{node.lineno}: {node.name}")


def _in_function(node: Function, name: str) -> Iterator[str]:
    lines = _length(node) - (_length(node.body[0]) if ast.get_docstring(node) is not None else 0)
    if lines > FUNCTION_LINES:
        yield f"{name} has {lines} lines, at most {FUNCTION_LINES}"
    named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    parameters = sum(one.arg not in ("self", "cls") for one in named)
    if parameters > PARAMETERS and not _is_command(node):
        yield f"{name} has {parameters} parameters, at most {PARAMETERS}: make it a dataclass"


def _is_command(node: Function) -> bool:
    """Whether its parameters are the options of a command, as in `@app.command()`: people pick from those."""
    calls = (decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "command" for call in calls)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    finish(problems(ROOT))
