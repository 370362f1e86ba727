"""`incrowd reproduce fedn-...`: the FEDn example of DP-SGD in silos, and the levels of privacy it discusses."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.results import columns, say, show
from incrowd import ConfigError
from incrowd.cli import Json, need_training, numbers, whole_numbers, words
from papers.commands.options import DRAWN, FEATURES, Cache, Data, Out, Seeds

app = typer.Typer()


@app.command("fedn-silos")
def fedn_silos(
    data: Data,
    silos: Annotated[str, typer.Option(help="Numbers of silos, commas between.")] = "2,10",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between.")] = "8,2",
    network: Annotated[str, typer.Option(help="What learns, commas between: article, best.")] = "article,best",
    rounds: Annotated[int, typer.Option(help="How many rounds share the budget.")] = 10,
    seeds: Seeds = 1,
    cache: Cache = FEATURES,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """DP-SGD in silos over ten rounds: accuracy, epsilon after each round, and the published schedule beside it.

    Example: incrowd reproduce fedn-silos --data data --silos 2 --epsilon 8 --network best
    """
    need_training()
    from papers.fedn.pictures import plot_silos
    from papers.fedn.silos import Silos, shown, shown_published
    from papers.shared import load

    wanted = Silos(
        split=load(data),
        silos=whole_numbers("silos", silos),
        epsilons=numbers("epsilon", epsilon),
        networks=words(network),
        rounds=rounds,
        seeds=seeds,
        cache=cache,
        say=say,
    )
    report: dict[str, Any] = {"runs": wanted.runs(), "published": wanted.published()}
    report["files"] = plot_silos(out, report["runs"], report["published"])
    published = "the published schedule, priced by composition:", shown_published(report["published"]), *report["files"]
    show(report, shown(report["runs"]), *published, as_json=as_json)


@app.command("fedn-privacy-levels")
def fedn_privacy_levels(
    data: Data,
    clients: Annotated[int, typer.Option(help="How many clients share the examples.")] = 100,
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between.")] = "0.5,1,2,4,8",
    level: Annotated[str, typer.Option(help="Promises, commas between.")] = "local,central,record",
    seeds: Seeds = 1,
    cache: Cache = FEATURES,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Accuracy against epsilon on the same data: a whole client, locally or centrally, and one record.

    Example: incrowd reproduce fedn-privacy-levels --data data --plot levels.png
    """
    need_training()
    from papers.fedn.levels import Levels, plot_levels
    from papers.shared import load

    points = Levels(
        split=load(data),
        clients=clients,
        epsilons=numbers("epsilon", epsilon),
        levels=words(level),
        seeds=seeds,
        cache=cache,
        say=say,
    ).points()
    if plot is not None:
        plot_levels(plot, points)
    report = {"points": points, "plot": None if plot is None else str(plot)}
    names = ("level", "unit", "clients", "epsilon", "delta", "accuracy")
    show(report, columns(points, names), as_json=as_json)


@app.command("shared-silos")
def shared_silos(
    data: Data,
    sets: Annotated[str, typer.Option(help="Data sets in the folder: mnist, fashion.")] = "mnist",
    sizes: Annotated[str, typer.Option(help="Silos x records each, commas between.")] = "20x100,5x500",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between.")] = "1,0.3",
    seeds: Seeds = 3,
    cache: Cache = FEATURES,
    plot: Annotated[Path | None, typer.Option(help="Draw the bars into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Records protected by noise that all silos share, beside one trusted server, each silo's own noise, and one alone.

    Example: incrowd reproduce shared-silos --data data --sizes 20x100 --epsilon 1 --plot shared.png
    """
    need_training()
    from papers.fedn.shared import SharedSilos, plot_shared, shown
    from papers.shared import load

    pairs = [whole_numbers("sizes", each.replace("x", ",")) for each in words(sizes)]
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigError(field="sizes", value=sizes, remedy="give silos x records, say 20x100")
    rows = []
    for name in words(sets):
        wanted = SharedSilos(
            split=replace(load(data / name if (data / name).is_dir() else data), name=name),
            sizes=[(pair[0], pair[1]) for pair in pairs],
            epsilons=numbers("epsilon", epsilon),
            seeds=seeds,
            cache=cache,
            say=say,
        )
        rows += wanted.rows()
    if plot is not None:
        plot_shared(plot, rows)
    show({"rows": rows, "plot": None if plot is None else str(plot)}, shown(rows), as_json=as_json)


@app.command("secure-sum-cost")
def secure_sum_cost(
    parties: Annotated[str, typer.Option(help="Numbers of parties, commas between.")] = "5,20",
    weights: Annotated[str, typer.Option(help="Numbers of weights, commas between.")] = "10000,532110",
    as_json: Json = False,
) -> None:
    """What a masked answer costs one party: processor time on one thread, and bytes.

    Example: incrowd reproduce secure-sum-cost --parties 20 --weights 532110
    """
    from papers.fedn.masked import cost

    rows = [
        cost(parties=several, size=size)
        for size in whole_numbers("weights", weights)
        for several in whole_numbers("parties", parties)
    ]
    show({"rows": rows}, rows, as_json=as_json)


@app.command("fedn-average-query")
def fedn_average_query(
    users: Annotated[int, typer.Option(help="How many users there are beside the one in question.")] = 10,
    bound: Annotated[float, typer.Option(help="Values are clipped to [-bound, bound].")] = 1.0,
    noise_std: Annotated[float, typer.Option(help="The standard deviation of the answer's noise.")] = 0.2,
    tail: Annotated[float, typer.Option(help="The probability of each tail that is cut off.")] = 0.005,
    plot: Annotated[Path | None, typer.Option(help="Draw the privacy loss into this file.")] = None,
    as_json: Json = False,
) -> None:
    """What one private answer about an average gives away: the article's introductory example.

    Example: incrowd reproduce fedn-average-query --plot privacy-loss.png
    """
    from papers.fedn.average_query import AverageQuery, plot_average_query

    query = AverageQuery(users=users, bound=bound, noise_std=noise_std, tail=tail)
    if plot is not None:
        plot_average_query(plot, query)
    report = query.facts() | {"plot": None if plot is None else str(plot)}
    show(report, report, as_json=as_json)
