"""`incrowd bench-accuracy`: what a budget buys, on data that nobody tuned for."""

from pathlib import Path
from typing import Annotated

import typer

from harness.results import columns, say, show
from harness.seeds import Entry
from incrowd.cli import Json, need_training, numbers, whole_numbers, words
from papers.commands.options import FEATURES, Cache

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Sets = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder that holds mnist/, fashion/, cifar10/.")]
_SHOWN = ("data_set", "unit", "clients", "epsilon", "recipe", "accuracy", "standard_error", "without_noise", "majority")


@app.command("bench-accuracy")
def bench_accuracy(
    data: Sets,
    sets: Annotated[str, typer.Option("--sets", help="Data sets by name, commas between.")] = "mnist,fashion,cifar10",
    clients: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100,1000",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between.")] = "8",
    recipe: Annotated[
        str, typer.Option(help="How to learn, commas between; general is raw pixels, the same mechanism.")
    ] = "images,general",
    records: Annotated[
        bool, typer.Option("--records", help="Protect single records, of delta 1e-5, instead of clients.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How often to repeat each, all drawn anew.")] = 3,
    held_out: Annotated[
        int, typer.Option(metavar="N", help="Measure on N training examples: for choosing settings.")
    ] = 0,
    ceiling: Annotated[bool, typer.Option(help="Also fit the same features without noise.")] = True,
    cache: Cache = FEATURES,
    as_json: Json = False,
) -> None:
    """What private federations reach on several data sets, beside raw pixels, no noise, and published figures.

    Example: incrowd bench-accuracy --data data --sets fashion --clients 100 --seeds 2
    """
    need_training()
    from papers.accuracy.measure import Bench
    from papers.accuracy.sets import load_set

    rows: list[Entry] = []
    for name in words(sets):
        bench = Bench.on(load_set(name, data), held_out=held_out, seeds=seeds, cache=cache, ceiling=ceiling, say=say)
        for budget in numbers("epsilon", epsilon):
            for how in words(recipe):
                if records:
                    rows.append(bench.records(how, epsilon=budget, delta=1e-5))
                else:
                    rows += [
                        bench.clients(how, clients=count, epsilon=budget) for count in whole_numbers("clients", clients)
                    ]
    beside = [
        f"{row['data_set']}, {row['unit']}, epsilon {row['epsilon']:g}: {one['accuracy']} ({one['source']})"
        for row in rows
        if row["recipe"] == words(recipe)[0]
        for one in row["published"]
    ]
    told = [f"published beside it: {line}" for line in dict.fromkeys(beside)]
    show({"rows": rows, "held_out": held_out}, columns(rows, _SHOWN, digits=4), *told, as_json=as_json)
