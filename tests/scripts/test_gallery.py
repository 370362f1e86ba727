"""The gallery shows what its commands make: each named, each picture there, small, described and without a date."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from incrowd.cli import app
from scripts import gallery
from scripts._common import ROOT
from scripts._exhibits import EXHIBITS, words

PAGE = gallery.PAGE.read_text(encoding="utf-8")
IMAGE = re.compile(r"!\[(?P<alt>[^]]*)\]\((?P<path>[^)]+)\)")
FENCE = re.compile(r"^```text\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)


def shown() -> list[str]:
    """The commands in the page's fences, without what is said of them."""
    lines = [line for fence in FENCE.finditer(PAGE) for line in fence["lines"].splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("incrowd ")]


def test_the_page_shows_the_commands_that_are_run_and_no_other() -> None:
    run = [command for exhibit in EXHIBITS for command in exhibit.commands]
    assert sorted(shown()) == sorted(run)


@pytest.mark.parametrize("command", sorted({command for exhibit in EXHIBITS for command in exhibit.commands}))
def test_every_command_parses(command: str) -> None:
    assert command.startswith("incrowd reproduce ")
    parsed = CliRunner().invoke(app, [*words(command), "--help"])
    assert parsed.exit_code == 0, parsed.output


def test_every_exhibit_has_its_picture_and_a_table() -> None:
    images = {Path(image["path"]).name: image["alt"] for image in IMAGE.finditer(PAGE)}
    assert sorted(images) == sorted(f"{one.name}.svg" for one in EXHIBITS if one.drawn)
    assert sorted(images) == sorted(path.name for path in gallery.PICTURES.iterdir())
    assert [name for name, alt in images.items() if len(alt) < 40] == []
    blocks = {block["name"]: block[0] for block in gallery.BLOCK.finditer(PAGE)}
    assert list(blocks) == [one.name for one in EXHIBITS]
    assert [name for name, block in blocks.items() if block.count("\n|") < 3 or not re.search("seed|pool", block)] == []


def test_the_page_is_linked() -> None:
    for name in ("docs/index.md", "docs/reproduce.md", "docs/reproduce-ddml.md", "README.md"):
        assert "gallery.md" in (ROOT / name).read_text(encoding="utf-8"), name
    assert shlex.split(shown()[0])[0] == "incrowd"
