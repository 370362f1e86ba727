"""`incrowd sweep`: compare settings, and pay for the choice."""

from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd.cli._options import (
    DataFolder,
    Json,
    LedgerOption,
    SettingsFile,
    WitnessOption,
    ledger_overrides,
    need_training,
)
from incrowd.cli._print import print_facts, print_json, print_table, say_what_takes_long, short
from incrowd.cli._stopped import again_where_dropped

app = typer.Typer()


Axes = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="KEY=A,B,C", help="Values to compare."),
]


@app.command()
def sweep(
    config: SettingsFile = None,
    axis: Axes = None,
    random: Annotated[int | None, typer.Option(help="So many of the combinations, drawn at random.")] = None,
    seed: Annotated[int, typer.Option(help="Decides which are drawn.")] = 0,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for all; may be repeated.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="The most that the whole search may cost.")] = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder for the search; out/sweep-... without it.")
    ] = None,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    as_json: Json = False,
) -> None:
    """Compare settings by a run each, and state what the choice costs.

    The same command goes on with a search that was stopped; finished runs are not repeated.

    Example: incrowd sweep --grid server.learning_rate=4,8,16 --grid privacy.rounds=10,20 --budget 40
    """
    need_training()
    say_what_takes_long()
    from incrowd.runs.sweep import Search, Sweep
    from incrowd.runs.sweep import axis as read

    search = Search(
        source=config,
        overrides=[*(override or []), *ledger_overrides(ledger, witness)],
        data=data,
        axes=[read(text) for text in axis or []],
        random=random,
        seed=seed,
        budget=budget,
    )
    try:
        with again_where_dropped():
            result = Sweep(search=search, out=out, say=lambda line: typer.echo(line, err=True)).run()
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on", err=True)
        raise typer.Exit(1) from None
    print_json(result) if as_json else _print(result)


def _print(result: dict[str, Any]) -> None:
    from incrowd.runs.sweep import ranked

    rows = ranked(result["runs"])
    shown = ("accuracy", "loss", "epsilon", "rounds", "seconds")
    print_table([{**row["settings"], **{name: short(row[name]) for name in shown}} for row in rows], leave_out=set())
    facts = {
        "best": result["best"]["settings"],
        "validation set": result["validation_set"],
        "epsilon of the search": result["epsilon_of_search"],
        "what is shown": result["holds"],
        "out": result["out"],
    }
    print_facts(facts)
    typer.echo(f"\n{result['statement']['text']}")
