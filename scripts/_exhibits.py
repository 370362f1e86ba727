"""What hangs in docs/gallery.md: for each figure and table the command that makes it, and the one that beats it."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scripts import _exhibit_tables as tables

Table = Callable[..., list[str]]
"""Of the reports of an exhibit's commands, as many as there are."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One figure or table: `beats` is a command that does better, `drawn` the one whose picture hangs, if one does."""

    name: str
    command: str
    table: Table
    beats: str = ""
    drawn: Literal["command", "beats"] | None = "command"

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
        name="geyer-table1",
        command=f"incrowd reproduce geyer-table1 {MNIST} --recipe network --rows 100 --seeds 2",
        beats=f"incrowd reproduce geyer-table1 {MNIST} --recipe best --seeds 2 --plot geyer-table1.svg",
        table=tables.table1,
        drawn="beats",
    ),
    Exhibit(
        name="geyer-figure1",
        command=f"incrowd reproduce geyer-figure1 {MNIST} --rows 100 --rounds 50",
        beats=f"incrowd reproduce geyer-table1 {MNIST} --recipe best --rows 100 --seeds 2",
        table=tables.geyer_figure1,
    ),
    Exhibit(
        name="geyer-figure2", command=f"incrowd reproduce geyer-figure2 {MNIST} --rounds 50", table=tables.geyer_figure2
    ),
    Exhibit(name="ddml-figure1", command="incrowd reproduce ddml-figure1", table=tables.ddml_figure1),
    Exhibit(
        name="ddml-figure2",
        command=f"incrowd reproduce ddml-figure2 {MNIST}",
        beats=f"incrowd reproduce ddml-figure2 {MNIST} --best",
        table=tables.ddml_figure2,
    ),
    Exhibit(
        name="ddml-figure3",
        command=f"incrowd reproduce ddml-figure3 {MNIST}",
        beats=f"incrowd reproduce ddml-figure2 {MNIST} --best",
        table=tables.ddml_figure3,
    ),
    Exhibit(
        name="ddml-figure4",
        command=f"incrowd reproduce ddml-figure4 {MNIST}",
        beats=f"incrowd reproduce ddml-figure4 {MNIST} --gamma 0.01",
        table=tables.ddml_figure4,
    ),
    Exhibit(
        name="ddml-figure5",
        command="incrowd reproduce ddml-figure5",
        beats="incrowd reproduce ddml-figure5 --gamma 0.2 --decay 1",
        table=tables.ddml_figure5,
    ),
    Exhibit(
        name="ddml-phishing",
        command=f"incrowd reproduce ddml-phishing {MNIST} --seeds 1",
        beats=f"incrowd reproduce ddml-phishing {MNIST} --seeds 1 --best",
        table=tables.phishing,
        drawn="beats",
    ),
    Exhibit(
        name="ddml-ranking",
        command="incrowd reproduce ddml-ranking",
        beats="incrowd reproduce ddml-ranking --updates 600000",
        table=tables.ranking,
        drawn=None,
    ),
    Exhibit(
        name="fedn-silos",
        command=f"incrowd reproduce fedn-silos {MNIST} --silos 2 --epsilon 8 --network article",
        beats=f"incrowd reproduce fedn-silos {MNIST} --silos 2,10 --epsilon 8,2 --network best",
        table=tables.silos,
        drawn=None,
    ),
)
