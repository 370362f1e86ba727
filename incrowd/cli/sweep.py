"""`incrowd sweep`: compare settings, and pay for the choice."""

import math
from enum import StrEnum
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
from incrowd.errors import ConfigError

app = typer.Typer()


class SelectName(StrEnum):
    """How the choice is paid for."""

    ALL = "all"
    PRIVATE = "private"


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
    select: Annotated[
        SelectName,
        typer.Option(help="all: each run is charged; private: only the best is shown."),
    ] = SelectName.ALL,
    expected_runs: Annotated[
        float | None, typer.Option(help="For --select private: how many runs are expected; the number is drawn.")
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
    from incrowd.privacy.account.selection import Repetitions
    from incrowd.runs.search import Search
    from incrowd.runs.search import axis as read
    from incrowd.runs.sweep import Sweep

    if expected_runs is not None and not expected_runs >= 1:
        raise ConfigError(field="expected_runs", value=expected_runs, remedy="give a number of at least 1")
    search = Search(
        source=config,
        overrides=[*(override or []), *ledger_overrides(ledger, witness)],
        data=data,
        axes=[read(text) for text in axis or []],
        random=random,
        seed=seed,
        select=select.value,
        repetitions=None if expected_runs is None else Repetitions(mean=expected_runs),
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
    rows = sorted(result["runs"], key=lambda row: (row["accuracy"] or 0.0, -(row["loss"] or math.inf)), reverse=True)
    shown = ("accuracy", "loss", "epsilon", "rounds", "seconds")
    print_table([{**row["settings"], **{name: short(row[name]) for name in shown}} for row in rows], leave_out=set())
    best = result["best"] or {"settings": "none: no run was drawn"}
    facts = {
        "best": best["settings"],
        "validation set": result["validation_set"],
        "epsilon of the search": result["epsilon_of_search"],
        "the selected": result["holds"]["selected"],
        "what is shown": result["holds"]["shown"],
        "out": result["out"],
    }
    print_facts(facts)
    typer.echo(f"\n{result['statement']['text']}")
