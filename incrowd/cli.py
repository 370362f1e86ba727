"""The command line: each command parses, calls one function, and prints.

With `--json` a command prints one JSON object on standard output and nothing else there. Exit status: 0 done, 1 failed,
2 wrong use, 3 stopped because the budget does not allow it.
"""

import json
import sys
import warnings
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incrowd import __version__
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError

if TYPE_CHECKING:
    from incrowd.runs.run import Run

app = typer.Typer(
    name="incrowd",
    help="Differentially private federated learning: plan it, run it, check what was spent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledger_app = typer.Typer(help="What has been spent, and whether the record is intact.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
reproduce_app = typer.Typer(help="The papers' tables and figures, measured anew.", no_args_is_help=True)
app.add_typer(reproduce_app, name="reproduce")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger, an SQLite file.")]


class SamplingName(StrEnum):
    """Who takes part in a round."""

    POISSON = "poisson"
    FIXED = "fixed"
    EVERYONE = "everyone"
    LOCAL = "local"


class AccountantName(StrEnum):
    """Who states the price."""

    TIGHTEST = "tightest"
    GDP = "gdp"
    PLD = "pld"
    RDP = "rdp"


def main() -> None:
    """Run the command line; errors of ours become one line and an exit status."""
    warnings.showwarning = _show_warning  # a line, where the default shows code
    try:
        app()
    except (ConfigError, DataError) as error:
        _stop(error, 2)
    except BudgetExceeded as error:
        _stop(error, 3)
    except IncrowdError as error:
        _stop(error, 1)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Differentially private federated learning: plan it, run it, check what was spent."""
    if version:
        typer.echo(f"incrowd {__version__}")


@app.command()
def plan(
    clients: Annotated[int, typer.Option(help="How many clients there are.")],
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")],
    delta: Annotated[float, typer.Option(help="The budget's delta; well below 1/clients.")],
    rounds: Annotated[str, typer.Option(help="Rounds, one number or several: 10,54.")] = "",
    cohort: Annotated[str, typer.Option(help="Expected clients a round, one number or several.")] = "",
    noise: Annotated[
        float | None, typer.Option(help="Fix the noise multiplier; rounds or cohort are then found.")
    ] = None,
    sampling: Annotated[SamplingName, typer.Option(help="How a cohort is drawn.")] = SamplingName.POISSON,
    accountant: Annotated[AccountantName, typer.Option(help="Who states the price.")] = AccountantName.TIGHTEST,
    grow_from: Annotated[float | None, typer.Option(help="First cohort of a growing schedule.")] = None,
    weights: Annotated[int, typer.Option(help="Weights of the model, for the noise-to-signal ratio.")] = 1,
    moments: Annotated[bool, typer.Option("--moments", help="Add what the 2017 paper's accountant states.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the plans into this file.")] = None,
    as_json: Json = False,
) -> None:
    """What a budget buys: noise, rounds and cohort that spend it exactly.

    Example: incrowd plan --clients 1000 --epsilon 8 --delta 1e-5 --rounds 54 --cohort 220
    """
    from incrowd.privacy.survey import Wish, paper_row, row

    wish = Wish(
        clients=clients,
        epsilon=epsilon,
        delta=delta,
        rounds=_whole_numbers("rounds", rounds),
        cohorts=_numbers("cohort", cohort),
        noise_multiplier=noise,
        sampling=sampling.value,
        accountant=accountant.value,
        grow_from=grow_from,
    )
    plans = list(wish.plans())
    if plot is not None:
        from incrowd.runs.plots import draw_plans

        draw_plans(plot, plans)
    found = [row(plan, weights=weights) | (paper_row(plan) if moments else {}) for plan in plans]
    if as_json:
        _print_json({"plans": found, "plot": None if plot is None else str(plot)})
    else:
        _print_table(found, leave_out={"schedule", "by_accountant"})


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; without them, the demonstration.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value; may be repeated.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that holds data sets.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the run; out/run-1, -2, ... without it.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to compute, say cuda; short for --set run.device.")] = None,
    as_json: Json = False,
) -> None:
    """Train one private federation, simulated on this machine.

    Without CONFIG it is the embedded digits, in under a minute.

    Example: incrowd train examples/mnist.toml --data data --set privacy.epsilon=2 --out out/mnist
    """
    _need_training()
    from incrowd.runs.run import Run, free_folder
    from incrowd.runs.settings import load

    overrides = [*(override or []), *([] if device is None else [f"run.device='{device}'"])]
    settings = load(config, overrides=overrides, data=data)
    _finish(Run.create(settings, free_folder(Path("out")) if out is None else out), as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")], as_json: Json = False
) -> None:
    """Go on with a run after a stop or a crash, on the same ledger.

    Example: incrowd resume out/mnist
    """
    _need_training()
    from incrowd.runs.run import Run

    _finish(Run.open(folder), as_json)


@app.command()
def bench(
    work: Annotated[str, typer.Option(help="What to measure, commas between.")] = "linear,mlp,mlp600,cnn",
    against: Annotated[str, typer.Option(help="Whom to compare with, commas between.")] = "lean,pfl,flower",
    batch: Annotated[str, typer.Option(help="Batch sizes, commas between.")] = "10,100",
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that holds mnist/; without it, synthetic images.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round each instead of three.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Also the memory of a very large round.")] = False,
    as_json: Json = False,
) -> None:
    """How fast the engine is, beside other ways to do the same work, in one run.

    Example: incrowd bench --work mlp --against lean --data data
    """
    _need_training()
    from incrowd.bench.compare import Contest
    from incrowd.bench.works import named

    contest = Contest(
        works=[named(name) for name in _words(work)],
        batch_sizes=_whole_numbers("batch", batch),
        against=_words(against),
        folder=data,
        rounds=1 if quick else 3,
        memory=memory,
    )
    report = contest.run(lambda line: typer.echo(line, err=True))
    _print_json(report.to_dict()) if as_json else typer.echo(report.to_text())


@reproduce_app.command("geyer-table1")
def geyer_table1(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds MNIST, or a set in its format.")],
    rows: Annotated[str, typer.Option(help="Numbers of clients, commas between.")] = "100,1000,10000",
    recipe: Annotated[str, typer.Option(help="How to learn, commas between: best, general, network.")] = "best,general",
    epsilon: Annotated[str, typer.Option(help="Budgets, commas between; the paper's is 8.")] = "8",
    seeds: Annotated[int, typer.Option(help="How often to repeat each, all drawn anew.")] = 5,
    smallest_epsilon: Annotated[
        bool, typer.Option("--smallest-epsilon", help="Find the least budget that reaches the paper's accuracy.")
    ] = False,
    ablate: Annotated[
        bool, typer.Option("--ablations", help="What each ingredient is worth, on held-out training examples.")
    ] = False,
    cache: Annotated[Path, typer.Option(metavar="DIR", help="Where features are kept.")] = Path("out/features"),
    plot: Annotated[Path | None, typer.Option(help="Draw the accuracies into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Private federations at the budgets of table 1 of Geyer, Klein and Nabi (2017), and what they reach.

    Example: incrowd reproduce geyer-table1 --data data --recipe best --seeds 3
    """
    _need_training()
    from incrowd.reproduce.report import report
    from incrowd.reproduce.table1 import Table, load

    table = Table(
        split=load(data),
        rows=_whole_numbers("rows", rows),
        recipes=_words(recipe),
        epsilons=_numbers("epsilon", epsilon),
        seeds=seeds,
        cache=cache,
        say=lambda line: typer.echo(line, err=True),
    )
    found, shown = report(table, smallest=smallest_epsilon, ablate=ablate, plot=plot)
    _print_json(found) if as_json else _print_table(shown, leave_out=set())


@ledger_app.command("show")
def ledger_show(file: LedgerFile, as_json: Json = False) -> None:
    """List what was charged, and what it comes to.

    Example: incrowd ledger show out/demo/ledger.sqlite
    """
    from incrowd.privacy.ledger import Ledger, verify

    found: dict[str, Any] = dict(verify(file))
    if found["intact"]:
        with Ledger.read(file) as ledger:
            found |= {"budget": asdict(ledger.budget), "relation": ledger.relation.name, "data": ledger.data_identity}
            found["entries"] = [asdict(entry) for entry in ledger.entries()]
    _print_json(found) if as_json else _print_facts(found)
    if not found["intact"]:
        raise typer.Exit(1)


@ledger_app.command("verify")
def ledger_verify(
    file: LedgerFile,
    head: Annotated[str | None, typer.Option(help="A head hash that you kept elsewhere.")] = None,
    as_json: Json = False,
) -> None:
    """Check the hashes, the witness and a head hash kept elsewhere. Exit status 1 when they do not hold.

    Example: incrowd ledger verify out/demo/ledger.sqlite
    """
    from incrowd.privacy.ledger import verify

    found = dict(verify(file, head=head))
    if as_json:
        _print_json(found)
    else:
        _print_facts(found)
    if not found["intact"]:
        raise typer.Exit(1)


def _need_training() -> None:
    for package in ("pydantic", "safetensors", "torch"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[train]' brings it")


def _finish(run: "Run", as_json: bool) -> None:
    from incrowd.runs.progress import progress

    try:
        summary = run.train([progress(sys.stderr)])
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with: incrowd resume {run.folder}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        _print_json(summary)
        return
    statement = summary.pop("statement")
    _print_facts({name.replace("_", " "): _short(value) for name, value in summary.items() if name != "budget"})
    typer.echo(f"\n{statement['text']}")


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(field: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(field=field, value=text, remedy="give a number, or several with commas between") from error


def _whole_numbers(field: str, text: str) -> tuple[int, ...]:
    numbers = _numbers(field, text)
    if any(number != int(number) for number in numbers):
        raise ConfigError(field=field, value=text, remedy="give whole numbers")
    return tuple(int(number) for number in numbers)


def _print_json(found: dict[str, Any]) -> None:
    typer.echo(json.dumps(found, allow_nan=False))


def _print_facts(found: dict[str, Any]) -> None:
    width = max(12, *map(len, found))
    for name, value in found.items():
        typer.echo(f"{name:{width}} {value}")


def _print_table(found: list[dict[str, Any]], *, leave_out: set[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    names = [name for name in (found[0] if found else {}) if name not in leave_out]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in found:
        table.add_row(*(f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in names))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {message}", err=True)


def _stop(error: IncrowdError, status: int) -> None:
    typer.echo(f"incrowd: {error}", err=True)
    sys.exit(status)
