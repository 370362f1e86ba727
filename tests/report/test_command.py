"""`incrowd report`: one file, for folders of every kind, and errors that name the folder."""

import stat
from pathlib import Path

import pytest

from tests.command import Command
from tests.report.conftest import Made


def test_it_writes_one_page_of_several_folders(incrowd: Command, made: Made) -> None:
    folders = [str(made(kind)) for kind in ("simulated", "silos")]
    told = incrowd("report", *folders, "--out", "both.html", "--json").object()
    text = Path("both.html").read_bytes()
    assert told["report"] == "both.html"
    assert told["bytes"] == len(text)
    assert [one["kind"] for one in told["runs"]] == ["clients", "silos"]
    assert stat.S_IMODE(Path("both.html").stat().st_mode) == 0o600
    again = incrowd("report", *folders, "--out", "both.html")
    assert again.out.startswith("both.html shows simulated, silos: one file of ")
    assert Path("both.html").read_bytes() == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["elsewhere"], "there is no run, search, pool or ledger"),
        (["RUN", "RUN"], "named twice"),
        (["RUN", "--out", "report.pdf"], "ends in .html"),
        (["RUN", "--out", "nowhere/report.html"], "in a folder that is there"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(incrowd: Command, made: Made, words: list[str], said: str) -> None:
    done = incrowd("report", *(str(made("simulated")) if word == "RUN" else word for word in words))
    assert done.status == 2
    assert said in done.err
    assert not list(Path().iterdir())
