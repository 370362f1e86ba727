"""`incrowd ledger`: what has been spent, and whether the record is intact."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd.cli._options import Json
from incrowd.cli._print import print_facts, print_json

app = typer.Typer(help="What has been spent, and whether the record is intact.", no_args_is_help=True)

LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger, an SQLite file.")]


@app.command("show")
def show(file: LedgerFile, as_json: Json = False) -> None:
    """List what was charged, and what it comes to.

    Example: incrowd ledger show out/demo/ledger.sqlite
    """
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.ledger.ledger import verify as check

    found: dict[str, Any] = dict(check(file))
    if found["intact"]:
        with Ledger.read(file) as ledger:
            found |= {"budget": asdict(ledger.budget), "relation": ledger.relation.name, "data": ledger.data_identity}
            found["entries"] = [asdict(entry) for entry in ledger.entries()]
    if as_json:
        print_json(found)
    else:
        entries = found.pop("entries", [])
        print_facts(found)
        for entry in entries:
            typer.echo(f"{entry['position']:6}  {entry['at'][:19]}  {entry['kind']:8} {entry['body']}")
    if not found["intact"]:
        raise typer.Exit(1)


@app.command("verify")
def verify(
    file: LedgerFile,
    head: Annotated[str | None, typer.Option(help="A head hash that you kept elsewhere.")] = None,
    as_json: Json = False,
) -> None:
    """Check the hashes, the witness and a head hash kept elsewhere. Exit status 1 when they do not hold.

    Example: incrowd ledger verify out/demo/ledger.sqlite
    """
    from incrowd.privacy.ledger.ledger import verify as check

    found = dict(check(file, head=head))
    if as_json:
        print_json(found)
    else:
        print_facts(found)
    if not found["intact"]:
        raise typer.Exit(1)
