"""`incrowd report`: one page to hand on, of runs, searches, pools and ledgers."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd import _files
from incrowd.cli._options import Json, need_training
from incrowd.cli._print import print_json
from incrowd.errors import ConfigError

app = typer.Typer()


@app.command("report")
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, searches or servers, or ledgers.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .html file to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write one page that shows result and promise: a file that loads nothing, to be handed on, printed or read.

    It holds what may be handed on (incrowd export) and nothing else; several runs are side by side. Runs need not be
    over.

    Example: incrowd report out/run-1 --out report.html
    """
    need_training()
    from incrowd.report.page import page
    from incrowd.report.shown import read_all

    if out.suffix != ".html" or out.is_dir() or not out.absolute().parent.is_dir():
        remedy = "name a file that ends in .html, in a folder that is there"
        raise ConfigError(field="out", value=str(out), remedy=remedy)
    shown = read_all(folders)
    text = page(shown)
    _files.write(out, text)
    if as_json:
        runs = [{"name": one.name, "kind": one.kind, "over": one.over, "epsilon": one.epsilon} for one in shown]
        print_json({"report": str(out), "bytes": len(text.encode()), "runs": runs})
    else:
        typer.echo(
            f"{out} shows {', '.join(one.name for one in shown)}: one file of {len(text.encode()) / 1000:,.0f} kB"
        )
