"""`incrowd party`: what a party has given."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json
from incrowd.cli._print import print_facts, print_json, print_table
from incrowd.errors import ConfigError

app = typer.Typer(help="What a party of a federation has given, by its own ledger.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """What a party of a federation has given, by its own ledger."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The party's ledger, or its folder.")],
    as_json: Json = False,
) -> None:
    """List what a party was asked, by which server, at what noise, what it comes to, and what it refused.

    Example: incrowd party show hospital/ledger.sqlite
    """
    if find_spec("cryptography") is None:
        raise ConfigError(field="package", value="cryptography", remedy="pip install 'incrowd[flower]' brings it")
    from incrowd.flower.given import given

    found = given(file)
    if as_json:
        print_json(found)
    else:
        events, refused = found.pop("events"), found.pop("refused")
        print_facts(found)
        for row in events:
            row["plan"] = row["plan"][:12]
        print_table(events, leave_out=set())
        for each in refused:
            what = "an offer" if each["round"] is None else f"round {each['round']}"
            typer.echo(f"refused {each['at']}  {what}: {each['why']}")
    if not found["intact"]:
        raise typer.Exit(1)
