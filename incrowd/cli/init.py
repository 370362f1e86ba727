"""`incrowd init`: settings for an own table, to be filled in."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd import _files
from incrowd.cli._options import Json
from incrowd.cli._print import print_json
from incrowd.errors import ConfigError

app = typer.Typer()


@app.command()
def init(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv, .csv.gz or .parquet file.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A new file for the settings.")] = None,
    client: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    label: Annotated[str | None, typer.Option(help="The column to learn.")] = None,
    as_json: Json = False,
) -> None:
    """Write settings for a table from its header alone; no row is looked at. What is to be stated is marked with a ?.

    Example: incrowd init visits.csv --client patient --label readmitted --out visits.toml
    """
    from incrowd.data.template import read_header, relative, template

    if out is not None and out.exists():
        raise ConfigError(field="out", value=str(out), remedy="it is there already: name a new file")
    header = read_header(table)
    seen = relative(table, to=None if out is None else out.parent)
    text = template(table, header, client=client, label=label, seen=seen)
    if out is not None:
        _files.folder(out.parent)
        _files.write(out, text)
    if as_json:
        print_json(
            {
                "columns": list(header.columns),
                "delimiter": header.delimiter,
                "encoding": header.encoding,
                "out": None if out is None else str(out),
                "template": text,
            }
        )
    elif out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"{out}: fill in what is marked with a ?, then: incrowd train {out}")
