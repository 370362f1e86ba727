"""`incrowd reproduce fedn-silos`: the FEDn example of DP-SGD in silos, with a budget that holds."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json, need_training, numbers, whole_numbers, words
from incrowd.cli._print import print_json, print_table

app = typer.Typer()


class EngineName(StrEnum):
    """Who computes the gradients of single records."""

    OWN = "own"
    OPACUS = "opacus"


@app.command("fedn-silos")
def fedn_silos(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds MNIST, or a set in its format.")],
    silos: Annotated[str, typer.Option(help="Numbers of silos, commas between.")] = "2,10",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between.")] = "8,2",
    network: Annotated[str, typer.Option(help="What learns, commas between: article, best.")] = "article,best",
    rounds: Annotated[int, typer.Option(help="How many rounds share the budget.")] = 10,
    pace: Annotated[
        str, typer.Option(help="constant-noise, constant-epsilon or square-root, each made to end at the budget.")
    ] = "constant-noise",
    engine: Annotated[EngineName, typer.Option(help="Who computes the gradients.")] = EngineName.OWN,
    seeds: Annotated[int, typer.Option(help="How often to repeat each, all drawn anew.")] = 1,
    cache: Annotated[Path, typer.Option(metavar="DIR", help="Where features are kept.")] = Path("out/features"),
    as_json: Json = False,
) -> None:
    """DP-SGD in silos over ten rounds: accuracy, epsilon after each round, and the published schedule beside it.

    Example: incrowd reproduce fedn-silos --data data --silos 2 --epsilon 8 --network best
    """
    need_training()
    from incrowd.privacy.remaining import named
    from incrowd.reproduce.fedn import Silos, shown, shown_published
    from incrowd.reproduce.table1 import load

    wanted = Silos(
        split=load(data),
        silos=whole_numbers("silos", silos),
        epsilons=numbers("epsilon", epsilon),
        networks=words(network),
        rounds=rounds,
        pace=named(pace),
        engine=engine.value,
        seeds=seeds,
        cache=cache,
        say=lambda line: typer.echo(line, err=True),
    )
    found = {"runs": wanted.runs(), "published": wanted.published()}
    if as_json:
        print_json(found)
        return
    print_table(shown(found["runs"]), leave_out=set())
    typer.echo("the published schedule, priced by composition:")
    print_table(shown_published(found["published"]), leave_out=set())
