from pathlib import Path

import pytest

from scripts.check_names import problems


def problems_of(root: Path, *modules: str, folder: str = "incrowd") -> list[str]:
    for place, text in enumerate(modules):
        path = root / folder / "room" / f"module_{place}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return problems(root)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Task: ...", "class Task: ..."),
        ("class Task: ...", "class _Task: ..."),
        ("class Task: ...", "Task = dict[str, int]"),
        ("Task = dict[str, int]", 'Task = TypeVar("Task")'),
        ("class Task: ...", "Task: TypeAlias = int"),
        ("class Task: ...", "def make():\n    class Task: ..."),
        ("class Task: ...", "class Other:\n    class Task: ..."),
    ],
)
def test_a_name_of_two_things_is_refused_with_both_places(first: str, second: str, tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, first, f"\n{second}")
    assert problem.startswith("Task is the name of 2 things: incrowd/room/module_0.py:1, incrowd/room/module_1.py:")


def test_one_module_may_not_have_it_twice_either(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "class Task: ...\nTask = int") == [
        "Task is the name of 2 things: incrowd/room/module_0.py:1, incrowd/room/module_0.py:2"
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Task: ...", "class Job: ..."),
        ("class Task: ...", "from incrowd.room.module_0 import Task"),
        ("class Task: ...", "import incrowd\ndef Task(): ..."),
        ("class Task: ...", "def make():\n    Task = 1"),
        ("LIMIT = 1", "LIMIT = 2"),
        ("X = 1", "X = 2"),
        ("task = 1", "task = 2"),
    ],
)
def test_what_is_one_thing_or_no_type_is_allowed(first: str, second: str, tmp_path: Path) -> None:
    assert problems_of(tmp_path, first, second) == []


def test_papers_and_benchmarks_have_names_of_their_own(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "class Task: ...", "class Task: ...", folder="papers") == []
