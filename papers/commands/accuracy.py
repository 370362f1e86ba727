"""`incrowd bench-accuracy`: what a budget buys, on data that nobody tuned for."""

from pathlib import Path
from typing import Annotated

import typer

from harness.results import columns, say, show
from harness.seeds import Entry
from incrowd.cli import Json, need_training, numbers, whole_numbers, words
from papers.commands.options import FEATURES, Cache

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Sets = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder that holds mnist/, adult/ and others.")]
_SHOWN = ("data_set", "unit", "clients", "epsilon", "recipe", "accuracy", "standard_error", "without_noise", "majority")


@app.command("bench-accuracy")
def bench_accuracy(
    data: Sets,
    sets: Annotated[
        str, typer.Option("--sets", help="Data sets by name, commas between.")
    ] = "mnist,fashion,cifar10,adult",
    clients: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100,1000",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between.")] = "8",
    recipe: Annotated[
        str, typer.Option(help="How to learn, commas between; general is raw pixels, the same mechanism.")
    ] = "images,tables,text,general",
    records: Annotated[
        bool, typer.Option("--records", help="Protect single records, of delta 1e-5, instead of clients.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How often to repeat each, all drawn anew.")] = 3,
    first_seed: Annotated[int, typer.Option(metavar="N", help="The first of the seeds: go on where others ended.")] = 0,
    held_out: Annotated[
        int, typer.Option(metavar="N", help="Measure on N training examples: for choosing settings.")
    ] = 0,
    strict: Annotated[
        int,
        typer.Option(metavar="N", help="Measure on the test examples, without the N that --held-out N measures on."),
    ] = 0,
    ceiling: Annotated[bool, typer.Option(help="Also fit the same features without noise.")] = True,
    cache: Cache = FEATURES,
    pfl: Annotated[
        int, typer.Option("--pfl", metavar="ROUNDS", help="Also pfl-research's CIFAR-10, for so many rounds.")
    ] = 0,
    plays: Annotated[
        bool, typer.Option("--plays", help="Also next characters, each speaker of plays a client.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="100 clients, epsilon 8, two seeds.")] = False,
    as_json: Json = False,
) -> None:
    """What private federations reach on several data sets, beside raw pixels, no noise, and published figures.

    Example: incrowd bench-accuracy --data data --sets fashion --clients 100 --seeds 2
    """
    need_training()
    from papers.accuracy.table import Table

    repeats = 2 if quick else seeds
    public = {"held_out": held_out, "strict": strict}
    measured = {"cache": cache, "ceiling": ceiling, "say": say}
    table = Table(
        folder=data,
        sets=words(sets),
        clients=(100,) if quick else whole_numbers("clients", clients),
        epsilons=(8.0,) if quick else numbers("epsilon", epsilon),
        recipes=words(recipe),
        records=records,
        pfl=pfl,
        plays=plays,
        bench=dict(public, seeds=repeats, first_seed=first_seed, **measured),
    )
    rows = list(table.rows())
    told = _published([row for row in rows if row["recipe"] == table.recipes[0]])
    show({"rows": rows, **public}, columns(rows, _SHOWN, digits=4), *told, as_json=as_json)


def _published(rows: list[Entry]) -> list[str]:
    """What others published of the same promise, a line for each figure."""
    beside = [
        f"{row['data_set']}, {row['unit']}, epsilon {row['epsilon']:g}: {one['accuracy']} ({one['source']})"
        for row in rows
        for one in row["published"]
    ]
    return [f"published beside it: {line}" for line in dict.fromkeys(beside)]
