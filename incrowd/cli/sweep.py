"""`incrowd sweep`: compare settings, and pay for the choice."""

import math
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.runs.search import Search

app = typer.Typer()


class SelectName(StrEnum):
    """How the choice is paid for."""

    ALL = "all"
    PRIVATE = "private"
    PUBLIC = "public"


Axes = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="KEY=A,B,C", help="Values to compare; with --random also KEY=LOW..HIGH[:log]."),
]


@app.command()
def sweep(
    config: SettingsFile = None,
    axis: Axes = None,
    random: Annotated[int | None, typer.Option(help="So many random points instead of all combinations.")] = None,
    seed: Annotated[int, typer.Option(help="Decides which points are random.")] = 0,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for all; may be repeated.")
    ] = None,
    select: Annotated[
        SelectName,
        typer.Option(help="all: each run is charged; private: only the best is shown; public: the data are public."),
    ] = SelectName.ALL,
    expected_runs: Annotated[
        float | None, typer.Option(help="For --select private: how many runs are expected; the number is drawn.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="The most that the whole search may cost.")] = None,
    validation: Annotated[
        float, typer.Option(help="Share of the training examples, declared public, that decides; 0: the test set.")
    ] = 0.1,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; as many as processors without it.")] = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder for the search; out/sweep-... without it.")
    ] = None,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    as_json: Json = False,
) -> None:
    """Compare settings by runs side by side, and state what the choice costs.

    The same command goes on with a search that was stopped; finished runs are not repeated.

    Example: incrowd sweep --grid server.learning_rate=4,8,16 --grid privacy.rounds=10,20 --budget 40
    """
    need_training()
    say_what_takes_long()
    from incrowd.privacy.account.selection import Repetitions
    from incrowd.runs.search import Search
    from incrowd.runs.search import axis as read

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
        validation=validation,
        budget=budget,
    )
    result = _ran(search, out, jobs=_processors() if jobs is None else jobs)
    print_json(result) if as_json else _print(result)


def _ran(search: "Search", out: Path | None, *, jobs: int) -> dict[str, Any]:
    """The result of all its runs, so many at a time."""
    from incrowd.runs.processes import again_where_dropped
    from incrowd.runs.sweep import Sweep

    try:
        with again_where_dropped():
            return Sweep(search=search, out=out, say=lambda line: typer.echo(line, err=True)).run(jobs=jobs)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on", err=True)
        raise typer.Exit(1) from None


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print(result: dict[str, Any]) -> None:
    rows = sorted(result["runs"], key=lambda row: (row["accuracy"] or 0.0, -(row["loss"] or math.inf)), reverse=True)
    shown = ("accuracy", "loss", "epsilon", "rounds", "seconds")
    print_table([{**row["settings"], **{name: short(row[name]) for name in shown}} for row in rows], leave_out=set())
    best = result["best"] or {"settings": "none: no run was drawn"}
    facts = {
        "best": best["settings"],
        "test accuracy": best.get("test_accuracy"),
        "validation set": result["validation_set"],
        "epsilon of the search": result["epsilon_of_search"],
        "the selected": result["holds"]["selected"],
        "what is shown": result["holds"]["shown"],
        "epsilon of one run alone": result["prices"]["one_run"],
        "epsilon of each, all shown": result["prices"]["every_candidate"],
        "table": result["table"],
        "out": result["out"],
    }
    print_facts(facts)
    typer.echo(f"\n{result['statement']['text']}")
