"""`incrowd party`: a party of a federation, for its owner."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd._prometheus import metric
from incrowd.cli._options import Json, Metrics, need_training
from incrowd.cli._print import print_facts, print_json, print_table
from incrowd.errors import ConfigError

app = typer.Typer(
    help="A party of a federation: its keys, its rules, what it has given.\n\nExample: incrowd party show amber",
    no_args_is_help=True,
)


@app.callback()
def root() -> None:
    """A party of a federation: its keys, its rules, what it has given.

    Example: incrowd party show amber
    """


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The party's ledger, or its folder.")],
    metrics: Metrics = False,
    as_json: Json = False,
) -> None:
    """List what a party was asked, by which server, at what noise, what it comes to, and what it refused.

    Example: incrowd party show hospital/ledger.sqlite
    """
    _need_keys()
    from incrowd.parties.guard import given

    found = given(file)
    if as_json:
        print_json(found)
    elif metrics:
        _print_metrics(found)
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


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the party.")],
    invitation: Annotated[Path, typer.Option(metavar="FILE", help="The invitation.json that the server gave.")],
    name: Annotated[str | None, typer.Option(help="The party's name; that of its folder without it.")] = None,
    table: Annotated[Path | None, typer.Option(metavar="TABLE", help="Its table, whose header is read.")] = None,
    as_json: Json = False,
) -> None:
    """Make a party's keys, its enrolment for the server, and the file in which its owner states what is allowed.

    Compare both fingerprints with the server over another way than the files take, say the telephone.

    Example: incrowd party new amber --invitation invitation.json --table visits.csv
    """
    need_training()
    _need_keys()
    from incrowd.parties.folder import new_folder
    from incrowd.parties.keys import Invitation
    from incrowd.parties.policy import PARTY_FILE

    invited = Invitation.read(invitation)
    enrolment = new_folder(folder, name or folder.resolve().name, invitation, table=table)
    facts = {
        "send": str(folder / f"{enrolment.name}.pub"),
        "fingerprint": enrolment.fingerprint,
        "server_fingerprint": invited.fingerprint,
        "fill_in": str(folder / PARTY_FILE),
    }
    print_json(facts) if as_json else print_facts(facts)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A party's folder.")], as_json: Json = False
) -> None:
    """Read the party's own data as its file states them, and say which column does not fit. Nothing leaves.

    Example: incrowd party check amber
    """
    need_training()
    _need_keys()
    from incrowd.parties.folder import PartyFolder

    member = PartyFolder.read(folder)
    rows, policy = member.check(), member.file.policy()
    facts = {
        "party": member.file.name,
        "rows": rows,
        "server": member.invitation.address,
        "server_fingerprint": member.invitation.fingerprint,
        "epsilon": policy.budget.epsilon,
        "delta": policy.budget.delta,
        "fields": None if policy.fields is None else list(policy.fields),
        "models": None if policy.models is None else list(policy.models),
    }
    print_json(facts) if as_json else print_facts(facts)


@app.command()
def compare(
    enrolled: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with the NAME.pub of every party.")],
    accept: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A party's folder, whose owner has compared the fingerprint.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the fingerprint of all parties' keys, for two owners to compare by telephone.

    Parties that share noise trust no server for each other's keys. With --accept a party takes part with this roster
    alone.

    Example: incrowd party compare enrolled --accept amber
    """
    need_training()
    _need_keys()
    from incrowd.parties.folder import PartyFolder
    from incrowd.parties.keys import read_roster

    roster = read_roster(enrolled)
    if accept is not None:
        PartyFolder.read(accept).compared(roster)
    facts = {"fingerprint": roster.shown, "parties": list(roster.names), "accepted": accept is not None}
    print_json(facts) if as_json else print_facts(facts)


@app.command()
def leave(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A party's folder.")], as_json: Json = False
) -> None:
    """Take part in nothing any more: what was reserved and not spent is given back. What was given stays given.

    Example: incrowd party leave amber
    """
    need_training()
    _need_keys()
    from incrowd.parties.folder import PartyFolder

    PartyFolder.read(folder).leave()
    if as_json:
        print_json({"party": str(folder), "left": True})
    else:
        typer.echo(f"{folder} has left; what it gave is still in: incrowd party show {folder}")


def _print_metrics(found: dict[str, Any]) -> None:
    """Figures for the owner's monitor, and for no server."""
    limits = {"promised": found.get("promised"), "budget": found.get("budget", {}).get("epsilon")}
    epsilon = {"spent": found["epsilon"], **{name: value for name, value in limits.items() if value is not None}}
    counts = {"answered": len(found["events"]), "refused": len(found["refused"])}
    intact = {"": int(found["intact"])}
    typer.echo(metric("incrowd_party_epsilon", "Epsilon of the ledger.", epsilon, label="of"), nl=False)
    typer.echo(metric("incrowd_party_questions", "Questions of servers.", counts, label="decision"), nl=False)
    typer.echo(metric("incrowd_party_ledger_intact", "Whether the ledger is whole.", intact), nl=False)


def _need_keys() -> None:
    if find_spec("cryptography") is None:
        raise ConfigError(field="package", value="cryptography", remedy="pip install 'incrowd[flower]' brings it")
