"""`incrowd reproduce`: the papers' tables and figures, measured anew."""

import typer

from papers.commands import ddml, ddml_uses, fedn, geyer

app = typer.Typer(
    help="The papers' tables and figures, measured anew.\n\nExample: incrowd reproduce ddml-figure1",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for paper in (geyer, ddml, ddml_uses, fedn):
    app.add_typer(paper.app)
