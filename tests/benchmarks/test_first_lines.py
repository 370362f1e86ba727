from pathlib import Path

import pytest

from first_lines import with_incrowd, with_opacus
from first_lines.count import SOLUTIONS, lines, names, table

FOLDER = Path(__file__).parents[2] / "benchmarks/first_lines"
PAGE = Path(__file__).parents[2] / "docs/benchmarks.md"


def solution(name: str) -> str:
    return (FOLDER / f"with_{name}.py").read_text()


@pytest.mark.parametrize("other", [name for name in SOLUTIONS if name != "incrowd"])
def test_there_are_fewer_names_and_lines_than_elsewhere(other: str) -> None:
    assert len(names(solution("incrowd"))) < len(names(solution(other)))
    assert lines(solution("incrowd")) < lines(solution(other))


def test_what_is_counted() -> None:
    text = "import numpy as np\nfrom a import b, c\nfrom first_lines.task import X\n\nd = b(np.ones(3), e=c.f)  # g\n"
    assert names(text) == {"b", "c", "e", "f"}
    assert lines(text) == 4


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text()


@pytest.mark.slow
def test_ours_and_the_one_with_opacus_learn(tmp_path: Path) -> None:
    assert with_incrowd.main(str(tmp_path / "run")) > 0.8
    assert with_opacus.main("") > 0.7
