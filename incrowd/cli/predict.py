"""`incrowd predict`: what the model of a finished run says about a table."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd import _files
from incrowd.cli._options import Json, need_training
from incrowd.cli._print import print_json
from incrowd.errors import ConfigError

app = typer.Typer()


@app.command("predict")
def predict_table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run that is over.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv, .csv.gz or .parquet file.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A new .csv file for the predictions.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a run's model predicts for each row of a table. Nothing is needed but the run's folder.

    Columns are found by their names, and mean what the run's settings state; labels and clients are not needed. What is
    printed is a table: an id, the prediction, and where labels are classes the probability of each. The id is the
    row's cell in a column "id", or in the client column, or else the row's number.

    Example: incrowd predict out/visits new-visits.csv --out predictions.csv
    """
    need_training()
    if out is not None and (out.exists() or out.is_symlink()):
        raise ConfigError(field="out", value=str(out), remedy="it is there already: name a new file")
    from incrowd.runs.predict import predict

    predictions = predict(folder, table)
    if out is not None:
        _files.folder(out.parent)
        _files.write(out, predictions.to_csv())
    if as_json:
        print_json(predictions.to_json() | {"out": None if out is None else str(out)})
    elif out is None:
        typer.echo(predictions.to_csv(), nl=False)
    else:
        typer.echo(f"{out} holds {len(predictions.labels)} predictions")
