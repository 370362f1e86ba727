import importlib
import re
import types
from pathlib import Path

import incrowd

API = Path(__file__).parent.parent / "docs/api.md"


def documented() -> list[str]:
    """The names that docs/api.md has of the package itself."""
    return re.findall(r"^\.\. auto\w+:: incrowd\.(\w+)$", API.read_text(), re.MULTILINE)


def test_the_documented_names_are_exactly_the_exported_ones() -> None:
    assert sorted(documented()) == sorted(set(incrowd.__all__) - {"__version__"})


def test_the_door_is_narrow() -> None:
    assert len(set(incrowd.__all__) - {"__version__"}) <= 40


def test_every_exported_name_is_there() -> None:
    fresh = importlib.import_module("incrowd")
    for name in incrowd.__all__:
        assert getattr(fresh, name) is not None, name


def test_nothing_else_is_visible() -> None:
    visible = {
        name
        for name, value in vars(incrowd).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert visible <= set(incrowd.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(incrowd, "no_such_name")
