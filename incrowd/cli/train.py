"""`incrowd train` and `incrowd resume`: a private federation, simulated on this machine."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incrowd.cli._options import (
    DataFolder,
    Json,
    LedgerOption,
    Overrides,
    SettingsFile,
    WitnessOption,
    ledger_overrides,
    need_training,
)
from incrowd.cli._print import print_facts, print_json, say_what_takes_long

if TYPE_CHECKING:
    from incrowd.runs.run import Run
    from incrowd.runs.trackers import Tracker

app = typer.Typer()


@app.command()
def train(
    config: SettingsFile = None,
    override: Overrides = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the run; out/run-1, -2, ... without it.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Settings that suit it, where CONFIG has none: general, images, handwriting, tables, text.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to compute, say cuda; short for --set run.device.")] = None,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    as_json: Json = False,
) -> None:
    """Train one private federation, simulated on this machine.

    Without CONFIG it is the embedded digits, in under a minute. All runs on the same data are charged to one ledger,
    which is in your state folder unless it is named; runs on public data, such as the digits, have a ledger each.
    With --recipe the settings have to state no more than data and budget, and what they state stays as it is.

    Example: incrowd train examples/mnist.toml --data data --set privacy.epsilon=2 --out out/mnist
    """
    need_training()
    say_what_takes_long()
    from incrowd.runs.settings import settings_of, tables

    overrides = [*(override or []), *([] if device is None else [f"run.device={json.dumps(device)}"])]
    overrides += ledger_overrides(ledger, witness)
    stated = tables(config, overrides=overrides, data=data, promise_only=recipe is not None)
    if recipe is not None:
        from incrowd.runs.recipes import with_recipe

        stated = with_recipe(stated, recipe)
    wanted = settings_of(stated)
    from incrowd.runs.run import Run, free_folder  # after the settings were read: it takes seconds

    finish(Run.create(wanted, free_folder(Path("out")) if out is None else out), as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")], as_json: Json = False
) -> None:
    """Go on with a run after a stop or a crash, on the same ledger.

    Example: incrowd resume out/mnist
    """
    need_training()
    say_what_takes_long()
    from incrowd.runs.run import Run

    finish(Run.open(folder), as_json)


Train = Callable[["Run", Sequence["Tracker"]], dict[str, Any]]


def finish(run: "Run", as_json: bool, *, train: Train | None = None, again: str | None = None) -> None:
    """Train a run to its end, here or the way that is given, and print what came out; `again` is how to go on with one
    that was stopped.
    """
    from incrowd.federated.metrics import scalars
    from incrowd.runs.interruption import again_where_dropped
    from incrowd.runs.progress import progress, say

    try:
        say(run.advice(), sys.stderr)
        watchers = [progress(sys.stderr)]
        with again_where_dropped():
            summary = run.train(watchers) if train is None else train(run, watchers)
        say(run.verdict(summary), sys.stderr)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with: {again or f'incrowd resume {run.folder}'}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(summary)
        return
    statement, metrics = summary.pop("statement"), summary.pop("metrics")
    shown = {name: value for name, value in summary.items() if name != "budget" and value is not None}
    shown["randomness"] = "seeded: a simulation" if shown.pop("simulated") else "the operating system's"
    print_facts({name.replace("_", " "): value for name, value in shown.items()})
    if metrics is not None:
        print_facts({name.replace("_", " "): value for name, value in scalars(metrics).items() if name not in summary})
    typer.echo(f"\n{statement['text']}")
