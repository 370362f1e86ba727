"""`incrowd ddml`: before devices are asked."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd.cli._options import Json
from incrowd.cli._print import print_facts, print_json, print_table
from incrowd.errors import ConfigError

app = typer.Typer(
    help="Draw and discard, before any device is asked.\n\nExample: incrowd ddml simulate mail.json --csv mail.csv",
    no_args_is_help=True,
)


@app.callback()
def ddml() -> None:
    """Draw and discard, before any device is asked.

    Example: incrowd ddml simulate mail.json --csv mail.csv
    """


@app.command("simulate")
def simulate(
    specification: Annotated[Path, typer.Argument(metavar="SPEC", help="A .json or .toml file: see `incrowd serve`.")],
    csv: Annotated[
        Path, typer.Option("--csv", metavar="FILE", help="A table like those of the devices, put together.")
    ],
    contributions: Annotated[int, typer.Option(help="How many contributions devices make, all together.")] = 10_000,
    epsilon: Annotated[float | None, typer.Option(help="Another epsilon than the specification's.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="How many devices share the rows; by default each has what one contribution uses."),
    ] = None,
    held_out: Annotated[float, typer.Option(help="The share of the rows that is kept to measure with.")] = 0.2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    as_json: Json = False,
) -> None:
    """What a specification would learn from a table at its epsilon: a simulation of the protocol, noise and all.

    Rows are dealt to devices, which contribute at random. Beside the measures on held-out rows stand those without
    noise and without a model, how many contributions it takes, and what of the table does not fit. Nothing is written.

    Example: incrowd ddml simulate mail.toml --csv mails.csv --contributions 20000 --epsilon 4
    """
    if find_spec("pydantic") is None:
        raise ConfigError(field="package", value="pydantic", remedy="pip install 'incrowd[drawdiscard]' brings it")
    from incrowd.drawdiscard.rehearsal import Rehearsal
    from incrowd.drawdiscard.source import read_csv_columns
    from incrowd.drawdiscard.specification import Specification, read_specification

    asked = read_specification(specification)
    if epsilon is not None:
        asked = Specification.of(asked.model_dump(mode="json") | {"epsilon": epsilon})
    rehearsal = Rehearsal(
        asked=asked,
        table=read_csv_columns(csv, asked),
        contributions=contributions,
        devices=devices,
        held_out=held_out,
        seed=seed,
    )
    report = rehearsal.report()
    print_json(report) if as_json else _show(report)


@app.command("token")
def token(
    accounts: Annotated[list[str], typer.Argument(metavar="ACCOUNT...", help="Letters, digits, _ or -.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The service's admission key; made if there is none.")],
    as_json: Json = False,
) -> None:
    """Issue admission tokens: each lets one account contribute, as often in a day as the service allows.

    Example: incrowd ddml token --key mail.pool/admission.key ann bob
    """
    from incrowd.service.admission import Admission, key_in

    admission = Admission(key=key_in(key))
    tokens = {account: admission.token(account) for account in accounts}
    print_json({"tokens": tokens}) if as_json else print_facts(tokens)


def _show(report: dict[str, Any]) -> None:
    typer.echo("SIMULATION: the rows are real, the noise is seeded, and nobody contributed.\n")
    beside = (
        "contributions_needed",
        "contributions_of_a_device",
        "devices",
        "examples_of_a_device",
        "weights",
        "epsilon",
    )
    print_facts({name.replace("_", " "): report[name] for name in (*beside, "honest_turned_away", "promise")})
    typer.echo()
    rows = {"no model": "baseline", "learnt": "metrics", "without noise": "without_noise"}
    print_table([{"": label} | report[key] for label, key in rows.items()], leave_out=set())
    print_table(report["curve"], leave_out=set())
    fit = report["fit"]
    typer.echo(f"{fit['usable']} of {fit['examples']} rows can be learnt from")
    for problem in fit["problems"]:
        typer.echo(f"- {problem}")
