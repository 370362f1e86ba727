"""`incrowd audit`: attack a federation as it is configured, and hold what was found against what is promised."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incrowd.cli._options import DataFolder, Json, Overrides, need_training
from incrowd.cli._print import print_facts, print_json, print_table, short

if TYPE_CHECKING:
    from incrowd.audit.bounds import Audited

app = typer.Typer()

RESULT = "audit.json"


@app.command("audit")
def audit(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG|DIR]", help="Settings, a specification, a run; else the demonstration."),
    ] = None,
    override: Overrides = None,
    data: DataFolder = None,
    canaries: Annotated[int | None, typer.Option(help="Canary clients in all; 20,000 unless it is given.")] = None,
    repeats: Annotated[int | None, typer.Option(help="How often the federation is played instead.")] = None,
    seed: Annotated[int, typer.Option(help="Of the simulations.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the canaries: weaker, and sooner done.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=f"Write {RESULT} there.")] = None,
    as_json: Json = False,
) -> None:
    """Attack a federation, on simulations of its settings, and set what was found out against what is promised.

    It is for whole clients, for records in silos, and for the specification of a draw-and-discard server. No ledger is
    opened and nothing is spent. Exit status 1 says that more was found out than is promised, and a line on standard
    error says what.

    Example: incrowd audit examples/mnist.toml --data data --out out/audit
    """
    need_training()
    from incrowd import _files
    from incrowd.audit.audit import Effort
    from incrowd.audit.audit import audit as run
    from incrowd.errors import ConfigError

    if out is not None and (out / RESULT).exists():
        raise ConfigError(field="out", value=str(out), remedy=f"it holds {RESULT}: name another folder")
    effort = Effort(canaries=canaries, repeats=repeats, seed=seed, quick=quick)
    found = run(source, overrides=override or [], data=data, effort=effort)
    content = found.to_json()
    if out is not None:
        _files.folder(out)
        _files.write(out / RESULT, json.dumps(content, indent=1, allow_nan=False))
    if as_json:
        print_json(content)
    else:
        _show(found, content)
    if not found.holds:
        typer.echo(f"incrowd: the promise does not hold: {'; '.join(found.violations)}", err=True)
        raise typer.Exit(1)


def _show(found: "Audited", content: dict[str, Any]) -> None:
    """The verdict, then what every attack found and every look saw."""
    best = found.best
    proven = "nothing" if best is None else f"at least {short(best.lower_bound)}, with {best.confidence:.0%} confidence"
    print_facts(
        {
            "promised": f"epsilon = {short(found.claimed)} at delta = {short(found.delta)}",
            "found out": proven,
            "verdict": "the promise holds against all that was tried" if found.holds else "THE PROMISE DOES NOT HOLD",
            "what it is": content["simulated"],
            **{f"note {place}": note for place, note in enumerate(found.notes, 1)},
        }
    )
    typer.echo("")
    print_table([_row(each) for each in content["findings"]], leave_out=set())
    print_table([{**each, "holds": _said(each["holds"])} for each in content["checks"]], leave_out=set())


def _said(holds: bool) -> str:
    return "yes" if holds else "NO"


def _row(finding: dict[str, Any]) -> dict[str, Any]:
    shown = {
        "attack": finding["attack"],
        "epsilon at least": finding["lower_bound"],
        "claimed": finding["claimed"],
        "area": finding["auc"],
        "true positives": finding["true_positives"],
        "allowed": finding["allowed"],
        "trials": finding["trials"],
        "holds": _said(finding["holds"]),
    }
    return {name: "" if value is None else value for name, value in shown.items()}
