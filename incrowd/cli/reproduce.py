"""`incrowd reproduce`: the papers' tables and figures, measured anew."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json, need_training, numbers, whole_numbers, words
from incrowd.cli._print import print_json, print_table

app = typer.Typer(help="The papers' tables and figures, measured anew.", no_args_is_help=True)


@app.command("geyer-table1")
def geyer_table1(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds MNIST, or a set in its format.")],
    rows: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100,1000,10000",
    recipe: Annotated[str, typer.Option(help="How to learn, commas between: best, general, network.")] = "best,general",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between; the paper's is 8.")] = "8",
    seeds: Annotated[int, typer.Option(help="How often to repeat each, all drawn anew.")] = 5,
    smallest_epsilon: Annotated[
        bool, typer.Option("--smallest-epsilon", help="Find the least budget that reaches the paper's accuracy.")
    ] = False,
    ablate: Annotated[
        bool, typer.Option("--ablations", help="What each ingredient is worth, on held-out training examples.")
    ] = False,
    cache: Annotated[Path, typer.Option(metavar="DIR", help="Where features are kept.")] = Path("out/features"),
    plot: Annotated[Path | None, typer.Option(help="Draw the accuracies into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Private federations at the budgets of table 1 of Geyer, Klein and Nabi (2017), and what they reach.

    Example: incrowd reproduce geyer-table1 --data data --recipe best --seeds 3
    """
    need_training()
    from incrowd.reproduce.report import report
    from incrowd.reproduce.table1 import Table, load

    table = Table(
        split=load(data),
        rows=whole_numbers("rows", rows),
        recipes=words(recipe),
        epsilons=numbers("epsilon", epsilon),
        seeds=seeds,
        cache=cache,
        say=lambda line: typer.echo(line, err=True),
    )
    found, shown = report(table, smallest=smallest_epsilon, ablate=ablate, plot=plot)
    print_json(found) if as_json else print_table(shown, leave_out=set())
