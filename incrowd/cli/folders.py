"""`incrowd list` and `export`: which runs there are, and what of one may be handed on."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json, need_training
from incrowd.cli._print import print_json, print_table, short

app = typer.Typer()


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """List the runs and searches below a folder: whom each protects, how far it has got, what it has spent.

    Example: incrowd list out
    """
    need_training()
    from incrowd.runs.folder import listed

    rows = listed(folder)
    if as_json:
        print_json({"runs": rows})
    elif rows:
        for row in rows:
            row["randomness"] = {None: None, True: "seeded", False: "system"}[row["simulated"]]
        print_table([{name: short(value) for name, value in row.items()} for row in rows], leave_out={"simulated"})
    else:
        typer.echo(f"no run below {folder}; start one with: incrowd train")


@app.command("export")
def export_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or of a search.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="The model as ONNX, too: of a run on a table.")] = False,
    as_json: Json = False,
) -> None:
    """Copy what may be handed on of a run that is over, and nothing else: model, statement, result, what was spent.

    Example: incrowd export out/run-1 to-publish
    """
    need_training()
    from incrowd.runs.export import export

    files = export(folder, out, onnx=onnx)
    if as_json:
        print_json({"files": files, "out": str(out)})
    else:
        typer.echo(f"{out} holds what may be handed on:")
        for file in files:
            typer.echo(f"  {file}")
