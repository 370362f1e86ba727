"""The gallery shows what its commands make: each named, each picture there, small, described and without a date."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click import Command, Context, Group, UsageError
from typer.main import get_command

from incrowd.cli import app
from scripts import _exhibit_tables, gallery
from scripts._common import ROOT
from scripts._exhibits import EXHIBITS, Exhibit, words

PAGE = gallery.PAGE.read_text(encoding="utf-8")
LARGEST = 100_000
"""Bytes of a picture."""

IMAGE = re.compile(r"!\[(?P<alt>[^]]*)\]\((?P<path>[^)]+)\)")
FENCE = re.compile(r"^```text\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
DATE = re.compile(r"dc:date|\b20[2-9]\d-\d\d-\d\d")


def shown() -> list[str]:
    """The commands in the page's fences, without what is said of them."""
    lines = [line for fence in FENCE.finditer(PAGE) for line in fence["lines"].splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("incrowd ")]


def parse(command: str) -> str:
    """Parses a command as the program would, without running it; gives the last command's name."""
    last: Command = get_command(app)
    given = words(command)
    context = Context(last)
    while isinstance(last, Group):
        name, found, given = last.resolve_command(context, given)
        assert found is not None
        last, context = found, Context(found, info_name=name, parent=context)
    return str(last.make_context(last.name, given).info_name)


def test_the_page_shows_the_commands_that_are_run_and_no_other() -> None:
    run = [command for exhibit in EXHIBITS for command in exhibit.commands]
    assert sorted(shown()) == sorted(run)


@pytest.mark.parametrize("command", sorted({command for exhibit in EXHIBITS for command in exhibit.commands}))
def test_every_command_parses(command: str) -> None:
    assert command.startswith("incrowd reproduce ")
    assert parse(command) == words(command)[1]


@pytest.mark.parametrize("wrong", ["incrowd reproduce ddml-figure6", "incrowd reproduce ddml-figure1 --data data"])
def test_a_command_that_does_not_parse_is_found(wrong: str) -> None:
    with pytest.raises(UsageError):
        parse(wrong)


def test_every_exhibit_has_its_picture_and_a_table() -> None:
    images = {Path(image["path"]).name: image["alt"] for image in IMAGE.finditer(PAGE)}
    assert sorted(images) == sorted(f"{one.name}.svg" for one in EXHIBITS if one.drawn)
    assert sorted(images) == sorted(path.name for path in gallery.PICTURES.iterdir())
    assert [name for name, alt in images.items() if len(alt) < 40] == []
    blocks = {block["name"]: block[0] for block in gallery.BLOCK.finditer(PAGE)}
    assert list(blocks) == [one.name for one in EXHIBITS]
    assert [name for name, block in blocks.items() if block.count("\n|") < 3 or not re.search("seed|pool", block)] == []


@pytest.mark.parametrize("picture", sorted(gallery.PICTURES.iterdir()), ids=lambda path: path.name)
def test_pictures_are_small_and_say_no_date(picture: Path) -> None:
    assert picture.stat().st_size <= LARGEST
    text = picture.read_text(encoding="utf-8")
    assert "SIMULATION" in text
    assert not DATE.search(text)


@pytest.mark.parametrize("picture", sorted(gallery.PICTURES.iterdir()), ids=lambda path: path.name)
def test_pictures_run_nothing_load_nothing_and_name_no_folder(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert not re.search(r"<script|<image|<foreignObject|\bon\w+=|@import|url\((?!#)", text)
    assert [link for link in re.findall(r'href="([^"]*)"', text) if not link.startswith("#")] == []
    assert not re.search(r"(?<![\w:/.])/(tmp|home|root|work|Users)\b", text)


def test_a_table_is_put_at_its_place_alone() -> None:
    first, second = (f"<!-- {name}: made by scripts.gallery -->\n" for name in ("one", "two"))
    page = f"a\n{first}old\n<!-- end -->\nb\n{second}<!-- end -->\n"
    found = gallery.with_table(page, "one", ["| x |", "| --- |"])
    assert found == page.replace("old\n", "\n| x |\n| --- |\n\n")
    assert gallery.with_table(found, "one", ["| x |", "| --- |"]) == found
    assert gallery.with_table(page, "three", ["| x |"]) == page


@pytest.mark.slow
def test_an_exhibit_is_made_by_its_command_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = next(one for one in EXHIBITS if one.name == "ddml-figure1")
    quick = Exhibit(name=theirs.name, command=f"{theirs.command} --updates 40 --seeds 2", table=theirs.table)
    page = tmp_path / "gallery.md"
    page.write_text(f"<!-- {quick.name}: made by scripts.gallery -->\n<!-- end -->\n")
    monkeypatch.setattr(gallery, "PAGE", page)
    monkeypatch.setattr(gallery, "PICTURES", tmp_path)
    (tmp_path / "shop").mkdir()
    shop = gallery.Workshop(tmp_path / "shop", data=tmp_path)
    gallery.hang(quick, shop)
    assert "2 independent pools" in page.read_text()
    assert "| stated | measured | agrees |" in page.read_text()
    assert (tmp_path / "ddml-figure1.svg").read_text().startswith("<?xml")
    assert shop.run(quick.command)["pools"] == 2  # not run again
    with pytest.raises(subprocess.CalledProcessError):
        shop.run("incrowd reproduce ddml-figure1 --seeds 1")


def test_the_figure_with_two_learning_rates_is_one_table() -> None:
    def report(rate: float) -> dict[str, object]:
        def curve(k: int, label: str) -> dict[str, object]:
            return {"instances": k, "label": label, "learning_rate": rate, "final_accuracy": k * rate, "seeds": 1}

        series = [[curve(1, "k = 1"), curve(k, "draw and discard"), curve(k, "same instance")] for k in (5, 10)]
        told = [{"statement": name, "measured": "m", "agrees": name == "rate"} for name in ("k = 5: it is", "rate")]
        return {"panels": [{"series": one} for one in series], "findings": told}

    table = _exhibit_tables.ddml_figure4(report(0.01), report(0.1))
    assert table == [
        "| learning rate | accuracy with | k = 5 | k = 10 |",
        "| ---: | --- | ---: | ---: |",
        "| 0.01 | one model | 0.010 | 0.010 |",
        "| 0.01 | draw and discard | 0.050 | 0.100 |",
        "| 0.01 | same instance | 0.050 | 0.100 |",
        "| 0.1 | one model | 0.100 | 0.100 |",
        "| 0.1 | draw and discard | 0.500 | 1.000 |",
        "",
        "| stated | measured | agrees |",
        "| --- | --- | --- |",
        "| rate | m | yes |",
        "",
        "1 seed each.",
    ]


def test_the_page_is_linked() -> None:
    for name in ("docs/index.md", "docs/reproduce.md", "docs/reproduce-ddml.md", "README.md"):
        assert "gallery.md" in (ROOT / name).read_text(encoding="utf-8"), name
    assert shlex.split(shown()[0])[0] == "incrowd"
