"""`incrowd list` and `export`: which runs there are, and what of one may be handed on."""

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd import _files
from incrowd._prometheus import metric
from incrowd.cli._options import Json, Metrics, need_training
from incrowd.cli._print import print_json, print_table, short
from incrowd.errors import ConfigError, IncrowdError

app = typer.Typer()

EGRESS = "egress.html"


class Purpose(StrEnum):
    """The reason for an export."""

    EGRESS = "egress"


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look.")] = Path("out"),
    metrics: Metrics = False,
    as_json: Json = False,
) -> None:
    """List the runs and searches below a folder: whom each protects, how far it has got, what it has spent.

    Example: incrowd list out
    """
    need_training()
    if not folder.is_dir():
        raise ConfigError(field="folder", value=str(folder), remedy="name a folder with runs in it")
    rows = list(_rows(folder))
    if as_json:
        print_json({"runs": rows})
    elif metrics:
        _print_metrics(rows)
    elif rows:
        for row in rows:
            row["randomness"] = {None: None, True: "seeded", False: "system"}[row["simulated"]]
        print_table([{name: short(value) for name, value in row.items()} for row in rows], leave_out={"simulated"})
    else:
        typer.echo(f"no run below {folder}; start one with: incrowd train")


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each run and each search below a folder, by name; one that cannot be read has a row with the reason."""
    from incrowd.report.shown import read
    from incrowd.runs.folder import DATABASE, SEARCH

    for place, folders, files in os.walk(folder):
        folders.sort()
        if not {DATABASE, SEARCH} & set(files):
            continue
        folders.clear()
        names = ("unit", "state", "rounds", "epsilon", "delta", "simulated", "data")
        row: dict[str, Any] = {"run": place, **dict.fromkeys(names)}
        try:
            one = read(Path(place), live=True)
        except IncrowdError as error:
            yield row | {"state": f"cannot be read: {error}"}
            continue
        done = len(one.rounds)
        if one.kind == "search":
            row["state"] = f"a search, {'over' if one.over else 'not over'}"
        else:
            row |= {"rounds": done, "state": "over" if one.over else f"after {done} of {one.planned} rounds"}
        yield row | {name: getattr(one, name) for name in ("unit", "epsilon", "delta", "simulated", "data")}


def _print_metrics(rows: list[dict[str, Any]]) -> None:
    over = [{**row, "over": int(row["state"] in ("over", "a search, over"))} for row in rows]
    for name, told in (("rounds", "Finished rounds."), ("epsilon", "Epsilon so far."), ("over", "Whether it is over.")):
        known = {row["run"]: row[name] for row in over if row[name] is not None}
        typer.echo(metric(f"incrowd_run_{name}", told, known, label="run"), nl=False)


@app.command("export")
def export_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or of a search.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    purpose: Annotated[
        Purpose | None, typer.Option("--for", help="egress: add a page to print and file before the model leaves.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy what may be handed on of a run that is over, and nothing else: model, statement, result, what was spent.

    Example: incrowd export out/run-1 to-publish --for egress
    """
    need_training()
    from incrowd.runs.export import export

    files = export(folder, out)
    if purpose is not None:
        from incrowd.report.page import page
        from incrowd.report.shown import read_all

        (out / EGRESS).write_text(page(read_all([folder])), encoding="utf-8")
        _files.undate(out / EGRESS)
        _files.undate(out)
        files.append(EGRESS)
    if as_json:
        print_json({"files": files, "out": str(out)})
    else:
        typer.echo(f"{out} holds what may be handed on:")
        for file in files:
            typer.echo(f"  {file}")
