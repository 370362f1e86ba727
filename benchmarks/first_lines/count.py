"""Names and lines of each solution."""

import ast
from pathlib import Path

SOLUTIONS = ("incrowd", "opacus", "flower", "pfl")


def names(text: str) -> set[str]:
    """What a reader has to look up: the names that are imported, attributes, and arguments given by name.

    What the task itself defines is not counted, nor what numpy offers: everybody's data is an array.
    """
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = {name.name for node in imports if node.module not in ("first_lines.task", "typing") for name in node.names}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    found |= {node.attr for node in attributes if not _of_numpy(node)}
    return found | {
        keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords if keyword.arg
    }


def lines(text: str) -> int:
    """The lines of code, without what explains them."""
    tree = ast.parse(text)
    words = {
        line for node in ast.walk(tree) if _explains(node) for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    return sum(bool(line.strip()) and number not in words for number, line in enumerate(text.splitlines(), start=1))


def table() -> str:
    """The table of docs/benchmarks.md."""
    rows = ["| with | names | lines |", "| --- | --- | --- |"]
    for solution in SOLUTIONS:
        text = (Path(__file__).parent / f"with_{solution}.py").read_text()
        rows.append(f"| {solution} | {len(names(text))} | {lines(text)} |")
    return "\n".join(rows)


def _of_numpy(node: ast.Attribute) -> bool:
    value: ast.expr = node
    while isinstance(value, ast.Attribute | ast.Call | ast.Subscript):
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Name) and value.id in ("np", "OWNER", "X", "Y", "clients")


def _explains(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
