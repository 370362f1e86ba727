import importlib
import types
from pathlib import Path

import incrowd

API = Path(__file__).parent.parent / "docs/api.md"


def documented() -> list[str]:
    """The names in the first column of the table in docs/api.md."""
    rows = (line.split("|")[1].strip() for line in API.read_text().splitlines() if line.startswith("| `"))
    return [row.strip("`") for row in rows]


def test_the_documented_names_are_exactly_the_exported_ones() -> None:
    assert sorted(documented()) == sorted(set(incrowd.__all__) - {"__version__"})


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
