from pathlib import Path

import pytest

from scripts.check_sizes import problems

TOO_MANY = "f has 9 parameters, at most 8: make it a dataclass"


def problems_of(code: str, root: Path) -> list[str]:
    (root / "incrowd").mkdir()
    (root / "incrowd/thing.py").write_text(code)
    return problems(root)


def function(*, lines: int, docstring: int = 0, parameters: int = 0) -> str:
    """A function of this many lines, a docstring of this many among them."""
    words = ['    """Words.' + "\n" * (docstring - 1) + '"""'] if docstring else []
    names = ", ".join(f"p{number}" for number in range(parameters))
    return "\n".join([f"def f({names}):", *words, *["    pass"] * (lines - docstring - 1)]) + "\n"


@pytest.mark.parametrize(
    ("code", "line", "problem"),
    [
        ("pass\n" * 501, "", "501 lines, at most 500"),
        (function(lines=61), "1:", "f has 61 lines, at most 60"),
        (function(lines=101, docstring=40), "1:", "f has 61 lines, at most 60"),
        ("async " + function(lines=61), "1:", "f has 61 lines, at most 60"),
        (function(lines=2, parameters=9), "1:", TOO_MANY),
        ("@app.cached()\n" + function(lines=2, parameters=9), "2:", TOO_MANY),
        ("def f(a, b, c, /, d, e, f, *, g, h, i): pass\n", "1:", TOO_MANY),
    ],
)
def test_what_is_one_too_large_is_named(code: str, line: str, problem: str, tmp_path: Path) -> None:
    assert problems_of(code, tmp_path) == [f"incrowd/thing.py:{line} {problem}"]
