"""`incrowd reproduce ddml-...`: what draw and discard is used for in Pihur et al. (2018), sections V-C and VI."""

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.results import columns, say, show
from incrowd.cli import Json, numbers, whole_numbers
from papers.commands.options import DRAWN, Out, Seeds

app = typer.Typer()

Urls = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds phishing/urls.csv.gz.")]

MEASURES = ("roc_auc", "pr_auc", "accuracy", "precision", "recall", "f1")


@app.command("ddml-figure5")
def ddml_figure5(
    updates: Annotated[int, typer.Option(help="Updates to the pool; the paper's are 983068969.")] = 10_000_000,
    instances: Annotated[int, typer.Option(help="k.")] = 30,
    gamma: Annotated[float, typer.Option(help="The learning rate, at first.")] = 0.005,
    decay: Annotated[float, typer.Option(help="It falls to 0 as this power of the remaining share; 0 keeps it.")] = 0.0,
    examples: Annotated[int, typer.Option(help="Examples on a device.")] = 10,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """How fast 33 known weights are recovered, without noise as in the paper.

    Example: incrowd reproduce ddml-figure5 --updates 10000000 --gamma 0.2 --decay 1
    """
    from papers.ddml.recovery import Recovery, plot_recovery

    report = Recovery(
        updates=updates, instances=instances, gamma=gamma, decay=decay, examples=examples, seed=seed, say=say
    ).report()
    report["files"] = plot_recovery(out, report)
    names = ("moments", "root_mean_square_error", "largest_error", "accuracy_over_time")
    series = zip(*(report[name] for name in names), strict=True)
    show(report, [dict(zip(names, row, strict=True)) for row in series], as_json=as_json)


@app.command("ddml-phishing")
def ddml_phishing(
    data: Urls,
    best: Annotated[bool, typer.Option("--best", help="What can be learned at the same epsilon instead.")] = False,
    passes: Annotated[int, typer.Option(help="How often every device comes.")] = 50,
    seeds: Seeds = 3,
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure on hosts held out of the training URLs, not on the test ones.")
    ] = False,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """Phishing URLs told from others by 387 weights, at k = 20 and epsilon = log 32 per feature.

    Example: incrowd reproduce ddml-phishing --data data --best
    """
    from papers.ddml.phishing import Phishing, plot_phishing
    from papers.ddml.urls import load_urls

    report = Phishing.of(load_urls(data), tuning=tune, passes=passes, seeds=seeds, say=say).report(best=best)
    report["files"] = plot_phishing(out, report)
    rows: list[dict[str, Any]] = [*report["table"], report["without_noise"]]
    rows += [{"label": name.replace("_", " "), **report[name]} for name in ("not_private", "paper")]
    show(report, columns(rows, ("label", *MEASURES)), report["promise"], as_json=as_json)


@app.command("ddml-ranking")
def ddml_ranking(
    updates: Annotated[int, typer.Option(help="Updates to the pool.")] = 200_000,
    devices: Annotated[int, typer.Option(help="Devices, each with five texts.")] = 20_000,
    items: Annotated[int, typer.Option(help="Items to rank.")] = 7_000,
    weights: Annotated[int, typer.Option(help="Weights of the model.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """7,000 made-up items ranked by what people write, with 50,000 weights: quality, load, memory, hot keys.

    Example: incrowd reproduce ddml-ranking --updates 1000000
    """
    from papers.ddml.ranked_items import World
    from papers.ddml.ranking import Ranking, plot_ranking

    world = World.of_size(weights, items=items, seed=seed)
    report = Ranking(world=world, devices=devices, updates=updates, seed=seed, say=say).report()
    report["files"] = plot_ranking(out, report["series"])
    keys = [
        columns(rows, list(rows[0]), digits=6, none="none") for rows in (report["hot_keys"], report["instances_needed"])
    ]
    show(report, report["table"], report["load"], *keys, report["promise"], *report["files"], as_json=as_json)


@app.command("ddml-spam")
def ddml_spam(
    rate: Annotated[float, typer.Option(help="The wanted share of honest updates that are turned away.")] = 0.01,
    attackers: Annotated[
        str, typer.Option(help="Shares of the updates that attackers send, commas between.")
    ] = "0.05,0.2",
    honest: Annotated[int, typer.Option(help="Honest answers to each number of weights.")] = 40_000,
    sizes: Annotated[
        str, typer.Option(help="Numbers of weights whose honest answers are looked at, commas between.")
    ] = "33,387,650,7850",
    updates: Annotated[int, typer.Option(help="Updates of each training.")] = 12_000,
    instances: Annotated[int, typer.Option(help="k of each training.")] = 20,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    as_json: Json = False,
) -> None:
    """Whom the spam test turns away, honest devices and attackers, and what attacks do to a model of digits.

    Example: incrowd reproduce ddml-spam --rate 0.01 --attackers 0.05
    """
    from papers.ddml.spam import Spam

    report = Spam(
        rate=rate,
        attackers=numbers("attackers", attackers),
        honest=honest,
        updates=updates,
        instances=instances,
        sizes=whole_numbers("sizes", sizes),
        seed=seed,
        say=say,
    ).report()
    show(report, report["noise"], report["traffic"], report["attacks"], as_json=as_json)
