"""The list of what may be handed on: complete, and what the pages show."""

from pathlib import Path

import pytest

from incrowd.runs.config import Config, SiloConfig
from incrowd.runs.folder import KEPT_BACK, OF_A_RUN, OF_A_SEARCH, SHOWN, Content, content_of
from incrowd.settings import known_keys

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "contents"), [("runs.md", OF_A_RUN), ("sweep.md", OF_A_SEARCH)])
def test_the_pages_show_the_list(page: str, contents: tuple[Content, ...]) -> None:
    text = (DOCS / page).read_text()
    start = text.index("| file | holds | may be handed on |")
    shown = text[start : text.index("\n\n", start)].splitlines()[2:]
    assert shown == [f"| `{one.pattern}` | {one.holds} | {one.handed_on} |" for one in contents]


def test_every_setting_is_either_shown_or_kept_back() -> None:
    """A new setting cannot be forgotten."""
    known = {*known_keys(Config), *known_keys(SiloConfig)}
    known = {".".join(key.split(".")[:2]) for key in known if "." in key}
    shown = {f"{section}.{name}" for section, names in SHOWN.items() for name in names}
    assert shown | set(KEPT_BACK) == known
    assert not shown & set(KEPT_BACK)


def test_a_file_that_nobody_knows_is_not_on_the_list() -> None:
    assert content_of("contributions.npy", OF_A_RUN) is None
    assert content_of("model.safetensors.bak", OF_A_RUN) is None
    found = content_of("private/round-000003.safetensors", OF_A_RUN)
    assert found is not None
    assert found.handed_on == "no"
