"""Train: `incrowd train`, `resume` and `sweep`, simulated on this machine."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incrowd import _files
from incrowd.cli._main import again_where_dropped
from incrowd.cli._options import (
    DataFolder,
    Json,
    LedgerOption,
    Overrides,
    SettingsFile,
    WitnessOption,
    argument,
    flag,
    ledger_overrides,
    need_training,
    option,
)
from incrowd.cli._output import log_slow_features, print_facts, print_result, print_table, short
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.runs.run import Run
    from incrowd.runs.work import Work
    from incrowd.types import Tracker

app = typer.Typer()


@app.command()
def train(
    config: SettingsFile = None,
    override: Overrides = None,
    data: DataFolder = None,
    out: Annotated[Path | None, option("A new folder for the run; out/run-1, -2, ... without it.", "DIR")] = None,
    recipe: Annotated[str | None, option("Default settings: general, images, tables or text.", "NAME")] = None,
    device: Annotated[str | None, option("Where to compute, say cuda; short for --set run.device.")] = None,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    dry: Annotated[bool, flag("--dry-run", "Train on synthetic rows of the same schema, and show the cost.")] = False,
    yes: Annotated[bool, flag("--yes", "Spend all of a private ledger without a question.")] = False,
    as_json: Json = False,
) -> None:
    """Train one private federation, simulated on this machine.

    Without CONFIG it is the embedded digits, in under a minute. All runs on the same data are charged to one ledger, in
    your state folder unless you name it; runs on public data, such as the digits, have a ledger each. With --recipe, or
    recipe = "NAME" above the sections of CONFIG, you state data and budget, and may state more. A run that would spend
    all of a private ledger asks first.

    Example: incrowd train examples/mnist.toml --data data --set privacy.epsilon=2 --out out/mnist
    """
    need_training()
    log_slow_features()
    from incrowd.runs.config import tables
    from incrowd.runs.recipes import config_of

    overrides = [*(override or []), *([] if device is None else [f"run.device={json.dumps(device)}"])]
    overrides += ledger_overrides(ledger, witness)
    stated = tables(config, overrides=overrides, data=data, promise_only=recipe is not None)
    wanted = config_of(stated if recipe is None else {**stated, "recipe": recipe})
    if dry:
        from incrowd.runs.dry_run import dry_run

        found = dry_run(wanted)
        print_result(found if as_json else {name.replace("_", " "): found[name] for name in found}, as_json)
        return
    from incrowd.runs.run import Run, free_folder  # after the settings were read: it takes seconds

    folder = free_folder(Path("out")) if out is None else out
    finish(Run.create(wanted, folder, agree=None if yes else _ask), as_json)


def _ask(work: "Work") -> None:
    """Ask on a terminal, and refuse elsewhere, before a run spends all of a private ledger."""
    from incrowd.runs.dry_run import cost_of, spends_all

    if not spends_all(work):
        return
    spend, left, budget = cost_of(work)
    question = f"this run would spend epsilon = {spend:.4g} and leave {left:.4g} of {budget:.4g}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        remedy = f"{question}: look at --dry-run first, leave a part with privacy.room, or say --yes"
        raise ConfigError(field="yes", value=False, remedy=remedy)
    typer.confirm(f"{question}. Spend it?", abort=True, err=True)


@app.command()
def resume(folder: Annotated[Path, argument("DIR", "The folder of a run.")], as_json: Json = False) -> None:
    """Go on with a run after a stop or a crash, on the same ledger.

    Example: incrowd resume out/mnist
    """
    need_training()
    log_slow_features()
    from incrowd.runs.run import Run

    finish(Run.open(folder), as_json)


Train = Callable[["Run", Sequence["Tracker"]], dict[str, Any]]


def finish(run: "Run", as_json: bool, *, train: Train | None = None, again: str | None = None) -> None:
    """Train a run to its end, here or by `train`, and print the result; `again` is the command that goes on."""
    from incrowd.runs.advice import advice, verdict
    from incrowd.runs.trackers import progress, say

    try:
        say(advice(run.work), sys.stderr)
        watchers = [progress(sys.stderr)]
        with again_where_dropped():
            summary = run.train(watchers) if train is None else train(run, watchers)
        say(verdict(summary), sys.stderr)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with: {again or f'incrowd resume {run.folder}'}", err=True)
        raise typer.Exit(1) from None
    print_result(summary, as_json, partial(_print_summary, summary, run.folder))


def _print_summary(summary: dict[str, Any], folder: Path) -> None:
    from incrowd.algorithms.metrics import scalars
    from incrowd.report.page import page
    from incrowd.report.shown import read_all
    from incrowd.runs.folder import PAGE

    _files.write(folder / PAGE, page(read_all([folder])))
    left_out = ("budget", "simulated", "statement", "metrics")
    shown = {name: value for name, value in summary.items() if name not in left_out and value is not None}
    shown["plot"] = folder / PAGE
    shown["randomness"] = "seeded: a simulation" if summary["simulated"] else "the operating system's"
    print_facts({name.replace("_", " "): value for name, value in shown.items()})
    if summary["metrics"] is not None:
        known = scalars(summary["metrics"]).items()
        print_facts({name.replace("_", " "): value for name, value in known if name not in summary})
    typer.echo(f"\n{summary['statement']['text']}")


@app.command()
def sweep(
    config: SettingsFile = None,
    axis: Annotated[list[str] | None, option("Values to compare.", "KEY=A,B,C", "--grid")] = None,
    random: Annotated[int | None, option("So many of the combinations, drawn at random.")] = None,
    seed: Annotated[int, option("Decides which are drawn.")] = 0,
    override: Overrides = None,
    budget: Annotated[float | None, option("The most that the whole search may cost.")] = None,
    data: DataFolder = None,
    out: Annotated[Path | None, option("A folder for the search; out/sweep-... without it.", "DIR")] = None,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    as_json: Json = False,
) -> None:
    """Compare settings by a run each, and state what the choice costs.

    The same command goes on with a search that was stopped; finished runs are not repeated.

    Example: incrowd sweep --grid server.learning_rate=4,8,16 --grid privacy.rounds=10,20 --budget 40
    """
    need_training()
    log_slow_features()
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
    print_result(result, as_json, partial(_print_search, result))


def _print_search(result: dict[str, Any]) -> None:
    from incrowd.runs.folder import ranked

    rows = ranked(result["runs"])
    shown = ("accuracy", "loss", "epsilon", "rounds", "seconds")
    print_table([{**row["settings"], **{name: short(row[name]) for name in shown}} for row in rows])
    facts = {
        "best": result["best"]["settings"],
        "validation set": result["validation_set"],
        "epsilon of the search": result["epsilon_of_search"],
        "what is shown": result["holds"],
        "out": result["out"],
    }
    print_facts(facts)
    typer.echo(f"\n{result['statement']['text']}")
