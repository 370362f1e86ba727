"""What hangs in docs/gallery.md: for each figure and table the command that makes it, and the one that beats it."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts import _exhibit_tables as tables
from scripts._exhibit_tables import Report

Table = Callable[[Report, Report], list[str]]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One figure or table: `beats` is a command that does better; without a `picture` there is a table alone."""

    name: str
    command: str
    table: Table
    beats: str = ""
    picture: bool = True

    @property
    def commands(self) -> list[str]:
        """What has to be run."""
        return [self.command, *([self.beats] if self.beats else [])]


def words(command: str) -> list[str]:
    """The arguments of a command on the page, without the program's name."""
    return shlex.split(command)[1:]


MNIST = "--data data"
EXHIBITS: Sequence[Exhibit] = (
    Exhibit(
        name="geyer-figure1",
        command=f"incrowd reproduce geyer-figure1 {MNIST} --rows 100 --rounds 50",
        beats=f"incrowd reproduce geyer-table1 {MNIST} --recipe best --rows 100 --seeds 2",
        table=tables.geyer_figure1,
    ),
    Exhibit(
        name="geyer-figure2",
        command=f"incrowd reproduce geyer-figure2 {MNIST} --rounds 50",
        table=tables.geyer_figure2,
    ),
    Exhibit(name="ddml-figure1", command="incrowd reproduce ddml-figure1", table=tables.ddml_figure1),
    Exhibit(
        name="ddml-figure5",
        command="incrowd reproduce ddml-figure5",
        beats="incrowd reproduce ddml-figure5 --gamma 0.2 --decay 1",
        table=tables.ddml_figure5,
    ),
)
