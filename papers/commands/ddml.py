"""`incrowd reproduce ddml-...`: the figures of Pihur et al. (2018)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import checks
from harness.results import columns, say, show
from incrowd.cli import Json, numbers

if TYPE_CHECKING:
    from papers.ddml.figures import Figure
    from papers.ddml.study import Study

from papers.commands.options import DRAWN, Data, Out, Seeds

app = typer.Typer()

Passes = Annotated[int, typer.Option(help="How often every device comes.")]
HeldOut = Annotated[
    int, typer.Option(help="Measure on so many training examples, held out, instead of the test examples.")
]

SHOWN = {"curve": "label", "epsilon": "epsilon", "unit": "unit", "clip": "clip", "learning rate": "learning_rate",
         "accuracy": "final_accuracy", "sd": "final_accuracy_sd"}  # fmt: skip  # one thing a column
GAIN = {"gain over the paper's": "gain"}


@app.command("ddml-figure1")
def ddml_figure1(
    instances: Annotated[int, typer.Option(help="k.")] = 10,
    updates: Annotated[int, typer.Option(help="Updates to each pool.")] = 2_000,
    seeds: Annotated[int, typer.Option(help="Independent pools to average over.")] = 30,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """Draw and discard keeps the spread of its instances under noise; without discarding it grows.

    Example: incrowd reproduce ddml-figure1 --instances 20
    """
    from papers.ddml.spread import Spread, plot_spread

    report = Spread(instances=instances, updates=updates, seeds=seeds).measure()
    report["files"] = plot_spread(out, report)
    show(report, as_json=as_json)


@app.command("ddml-figure2")
def ddml_figure2(
    data: Data,
    passes: Passes = 20,
    seeds: Seeds = 1,
    best: Annotated[bool, typer.Option("--best", help="What can be learned at the same epsilon instead.")] = False,
    epsilon: Annotated[
        str, typer.Option(help="With --best: privacy of an update, commas between; the default is log 3 and log 16.")
    ] = "1.0986122886681098,2.772588722239781",
    held_out: HeldOut = 0,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """The number of instances, batches on the server, and the privacy of an update; softmax regression on MNIST.

    Example: incrowd reproduce ddml-figure2 --data data --best --seeds 3
    """
    from papers.ddml.best import best as beyond
    from papers.ddml.figures import figure2

    study = _study(data, passes=passes, seeds=seeds, held_out=held_out)
    if best:
        rows = beyond(study, epsilons=numbers("epsilon", epsilon))
        show({"rows": rows}, columns(rows, SHOWN | GAIN, none=""), as_json=as_json)
    else:
        _show(figure2(study), out, as_json)


@app.command("ddml-figure3")
def ddml_figure3(
    data: Data,
    passes: Passes = 20,
    seeds: Seeds = 1,
    instances: Annotated[int, typer.Option(help="k.")] = 20,
    epsilon: Annotated[float, typer.Option(help="Privacy of an update in the second panel.")] = 2.772588722239781,
    held_out: HeldOut = 0,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """What a server may do with an update: draw and discard, and four others.

    Example: incrowd reproduce ddml-figure3 --data data --passes 10
    """
    from papers.ddml.figures import figure3

    checks.positive(epsilon=epsilon)
    study = _study(data, passes=passes, seeds=seeds, held_out=held_out)
    _show(figure3(study, instances=instances, epsilon=epsilon), out, as_json)


@app.command("ddml-figure4")
def ddml_figure4(
    data: Data,
    passes: Passes = 20,
    seeds: Seeds = 1,
    gamma: Annotated[float, typer.Option(help="The learning rate.")] = 1e-4,
    held_out: HeldOut = 0,
    out: Out = DRAWN,
    as_json: Json = False,
) -> None:
    """The same for several numbers of instances, with a learning rate that is ten times smaller.

    Example: incrowd reproduce ddml-figure4 --data data
    """
    from papers.ddml.figures import figure4

    checks.positive(gamma=gamma)
    study = _study(data, passes=passes, seeds=seeds, held_out=held_out)
    _show(figure4(study, learning_rate=gamma), out, as_json)


def _study(data: Path, *, passes: int, seeds: int, held_out: int) -> "Study":
    from papers.ddml.study import Study
    from papers.shared import load

    checks.natural(held_out=held_out)
    return Study(split=load(data, held_out=held_out), passes=passes, seeds=seeds, say=say)


def _show(figure: "Figure", out: Path, as_json: bool) -> None:
    report = figure.to_json() | {"files": figure.plot(out)}
    panels = [part for one in report["panels"] for part in (one["title"], columns(one["series"], SHOWN, none=""))]
    show(report, *panels, as_json=as_json)
