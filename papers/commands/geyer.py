"""`incrowd reproduce geyer-...`: the table and the figures of Geyer, Klein and Nabi (2017)."""

from pathlib import Path
from typing import Annotated

import typer

from harness.results import say, show
from incrowd.cli import Json, need_training, numbers, whole_numbers, words
from papers.commands.options import DRAWN, FEATURES, Cache, Data, Out, Seeds

app = typer.Typer()

Runs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the recipe paper's federations in run folders here, and go on with them."),
]
Epsilon = Annotated[float, typer.Option(help="The budget; the paper's is 8.")]
Rounds = Annotated[int, typer.Option(help="Rounds of the federation without privacy.")]


@app.command("geyer-table1")
def geyer_table1(
    data: Data,
    rows: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100,1000,10000",
    recipe: Annotated[
        str, typer.Option(help="How to learn, commas between: best, general, network, paper, paper-quick.")
    ] = "best,general",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between; the paper's is 8.")] = "8",
    seeds: Seeds = 5,
    smallest_epsilon: Annotated[
        bool, typer.Option("--smallest-epsilon", help="Find the least budget that reaches the paper's accuracy.")
    ] = False,
    ablate: Annotated[
        bool, typer.Option("--ablations", help="What each ingredient is worth, on held-out training examples.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave the examples out of the federation that settings were chosen on.")
    ] = False,
    runs: Runs = None,
    cache: Cache = FEATURES,
    plot: Annotated[Path | None, typer.Option(help="Draw the accuracies into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Private federations at the budgets of table 1 of Geyer, Klein and Nabi (2017), and what they reach.

    Example: incrowd reproduce geyer-table1 --data data --recipe best --seeds 3
    """
    need_training()
    from papers.geyer.ablations import without_public
    from papers.geyer.kept import Kept
    from papers.geyer.report import report, warnings
    from papers.geyer.table1 import Table
    from papers.shared import load

    table = Table(
        split=without_public(load(data)) if strict else load(data),
        rows=whole_numbers("rows", rows),
        recipes=words(recipe),
        epsilons=numbers("epsilon", epsilon),
        seeds=seeds,
        cache=cache,
        kept=None if runs is None else Kept(folder=runs, data=data),
        say=say,
    )
    content, shown = report(table, smallest=smallest_epsilon, ablate=ablate, plot=plot)
    for warning in warnings(content):
        say(f"warning: {warning}")
    show(content, shown, as_json=as_json)


@app.command("geyer-figure1")
def geyer_figure1(
    data: Data,
    rows: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100,1000",
    epsilon: Epsilon = 8.0,
    rounds: Rounds = 100,
    seeds: Seeds = 1,
    runs: Runs = None,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """Accuracy over the rounds, with a dot where the budget ends: figure 1 of Geyer, Klein and Nabi (2017).

    Example: incrowd reproduce geyer-figure1 --data data --rows 100,1000 --out out/figures
    """
    need_training()
    from papers.geyer.figures import Figures, ended, plot_figure1
    from papers.geyer.kept import Kept
    from papers.geyer.plain import Plain
    from papers.shared import load

    kept = None if runs is None else Kept(folder=runs, data=data)
    curves = Figures(
        split=load(data),
        rows=whole_numbers("rows", rows),
        seeds=seeds,
        epsilon=epsilon,
        plain=Plain(rounds=rounds),
        kept=kept,
        say=say,
    ).figure1()
    report = {"curves": curves, "files": plot_figure1(out, curves)}
    show(report, ended(curves), as_json=as_json)


@app.command("geyer-figure2")
def geyer_figure2(data: Data, rounds: Rounds = 100, seeds: Seeds = 1, out: Out = DRAWN, as_json: Json = False) -> None:
    """Accuracy, between-client variance and update scale without privacy: figure 2 of Geyer, Klein and Nabi (2017).

    Example: incrowd reproduce geyer-figure2 --data data --out out/figures
    """
    need_training()
    from papers.geyer.figures import Figures, plot_figure2, sampled
    from papers.geyer.plain import Plain
    from papers.shared import load

    series = Figures(split=load(data), seeds=seeds, plain=Plain(rounds=rounds), say=say).figure2()
    report = series | {"files": plot_figure2(out, series)}
    show(report, sampled(series), as_json=as_json)


@app.command("geyer-growing")
def geyer_growing(
    data: Data,
    rows: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100",
    factors: Annotated[str, typer.Option(help="First cohorts as parts of the last, commas between.")] = "1,0.5,0.25",
    epsilon: Epsilon = 8.0,
    seeds: Seeds = 3,
    as_json: Json = False,
) -> None:
    """What cohorts that grow are worth, sigma^2 / m being constant (Geyer, Klein and Nabi 2017, section 6).

    Example: incrowd reproduce geyer-growing --data data --rows 100
    """
    need_training()
    from papers.geyer.growing import Growing
    from papers.shared import load

    report = Growing(
        split=load(data),
        rows=whole_numbers("rows", rows),
        factors=numbers("factors", factors),
        epsilon=epsilon,
        seeds=seeds,
        say=say,
    ).tables()
    tables = [part for name, entries in report.items() for part in (f"{name}:", entries)]
    show(dict(report), *tables, as_json=as_json)
