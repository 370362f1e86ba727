"""Real parties: `incrowd flower` for servers, `incrowd party` for the owners of data."""

import json
import re
import signal
import threading
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd import _files
from incrowd._log import log_to_stderr
from incrowd.cli._options import (
    DataFolder,
    Json,
    LedgerOption,
    LogJson,
    Metrics,
    Overrides,
    SettingsFile,
    WitnessOption,
    argument,
    flag,
    ledger_overrides,
    need,
    need_party,
    need_training,
    option,
)
from incrowd.cli._output import print_facts, print_json, print_metrics, print_result, print_table
from incrowd.cli.train import finish
from incrowd.errors import ConfigError, IncrowdError
from incrowd.flower import need_flower

WATCHED = {"epsilon": "Epsilon of the ledger.", "questions": "Questions of servers.", "ledger": "Whether it is whole."}

flower = typer.Typer(
    help="The same federations beyond one machine, on Flower.\n\nExample: incrowd flower new heart",
    no_args_is_help=True,
)
party = typer.Typer(
    help="A party of a federation: its keys, its rules, what it has given.\n\nExample: incrowd party show amber",
    no_args_is_help=True,
)


@flower.command()
def new(folder: Annotated[Path, argument("DIR", "A new folder for the app.")], as_json: Json = False) -> None:
    """Write an app of Flower's that trains under a plan and a ledger, for `flwr run` and stock nodes.

    Stock nodes run whatever the server sends them: parties that want a guard of their own use serve and join.

    Example: incrowd flower new heart
    """
    written = new_app(folder)
    facts = {"folder": str(folder), "files": [str(path) for path in written]}
    print_result(facts, as_json, said=f"{folder}: put your own training into client_app.py, then: flwr run {folder}")


def new_app(folder: Path) -> list[Path]:
    """Write an app, which will keep its ledger and model, into a new folder; return the files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(field="folder", value=str(folder), remedy="it is there already: name a new folder")
    where = folder.resolve()
    name = re.sub(r"[^a-z0-9]+", "-", where.name.lower()).strip("-")
    if not re.search("[a-z]", name):
        raise ConfigError(field="folder", value=str(folder), remedy="give a name with letters: the app is called so")
    _files.folder(folder)
    told = {"NAME": name, "LEDGER": str(where / "ledger.sqlite"), "MODEL": str(where / "model.npz")}
    written = [folder / file for file in ("pyproject.toml", "server_app.py", "client_app.py")]
    for path in written:
        text = files("incrowd.flower").joinpath("app", path.name).read_text("utf-8")
        for word, value in told.items():
            text = text.replace(f'"{word}"', json.dumps(value, ensure_ascii=False))  # which TOML has, too
        _files.write(path, text)
    return written


@flower.command()
def simulate(
    config: SettingsFile = None,
    override: Overrides = None,
    data: DataFolder = None,
    out: Annotated[Path | None, option("A folder for the run, new or of one that stopped.", "DIR")] = None,
    workers: Annotated[int | None, option("Ray workers, of one thread each; one a processor.")] = None,
    blocks: Annotated[int | None, option("Into how many blocks a cohort is dealt; one a worker.")] = None,
    gpus: Annotated[float, option("The share of an accelerator that each worker has.")] = 0.0,
    address: Annotated[str | None, option("A Ray cluster that runs; without one, Ray is started.")] = None,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    as_json: Json = False,
) -> None:
    """Train one private federation, its clients in blocks on Flower's simulation engine (Ray).

    The result is that of `incrowd train` with the same settings, to the last bit where randomness is seeded. The same
    command goes on with a run that stopped, and so does `incrowd resume`, on this machine alone.

    Example: incrowd flower simulate examples/mnist.toml --data data --workers 8 --out out/mnist
    """
    need_training()
    from incrowd.federation import Federation
    from incrowd.flower.simulation import Simulation
    from incrowd.runs.run import free_folder

    need_flower()
    simulation = Simulation(workers=workers, blocks=blocks, gpus=gpus, address=address)
    overrides = [*(override or []), *ledger_overrides(ledger, witness)]
    federation = Federation.from_settings(config, overrides=overrides, data=data)
    run = federation.run_in(free_folder(Path("out")) if out is None else out)
    finish(run, as_json, train=simulation.train)


@flower.command()
def keys(
    folder: Annotated[Path, argument("DIR", "A folder for the server's keys.")],
    host: Annotated[list[str], option("A name or an address of the server; may be repeated.")],
    port: Annotated[int, option("The port that parties reach it at.")] = 9092,
    renew: Annotated[bool, flag("--renew", "Make the certificate alone anew, for the same key.")] = False,
    authority: Annotated[Path | None, option("The ca.crt of a SuperLink that somebody else runs.", "FILE")] = None,
    as_json: Json = False,
) -> None:
    """Make a server's keys and certificate, and the invitation that every party is given.

    Compare the fingerprint with each party over another way than the file takes, say the telephone.

    Example: incrowd flower keys server --host fl.example.org
    """
    need_flower()
    from incrowd import _files
    from incrowd.parties import keys as made

    if authority is not None:
        _files.folder(folder)
        _files.write(folder / made.AUTHORITY, authority.read_bytes())
    else:
        if not renew:
            made.new_authority(folder)
        made.new_server_certificate(folder, host, renew=renew)
    invitation = made.new_invitation(folder, f"{host[0]}:{port}")
    facts = {
        "invitation": str(folder / made.INVITATION),
        "fingerprint": invitation.fingerprint,
        "address": invitation.address,
        "days": made.days_left(folder / (made.SERVER if authority is None else made.AUTHORITY)),
    }
    print_result(facts, as_json)


@flower.command()
def proxy(
    folder: Annotated[Path, argument("DIR", "A folder for nginx's configuration and logs.")],
    keys: Annotated[Path, option("The server's keys: `incrowd flower keys`.", "DIR")],
    enrolled: Annotated[Path, option("The folder with the NAME.pub of each party.", "DIR")],
    listen: Annotated[list[str] | None, option("Where to listen; 0.0.0.0:9092 without it.", "ADDRESS:PORT")] = None,
    port: Annotated[int, option("The port of `incrowd flower serve` on loopback.")] = 9091,
    reload: Annotated[bool, flag("--reload", "Let the running nginx read it anew.")] = False,
    as_json: Json = False,
) -> None:
    """Write nginx's configuration for the port that parties reach: mutual TLS, limits, and Flower's Fleet API alone.

    The server's authority signs the key of each NAME.pub: send NAME.crt back, which the party keeps as `node.crt`.
    Write it again with --reload when a party comes or goes, or the server's certificate was renewed: connections of
    other parties stay.

    Example: incrowd flower proxy proxy --keys keys --enrolled enrolled
    """
    need_flower()
    from incrowd.flower.proxy import CONFIGURATION, command, reload_proxy, write_proxy

    parties = write_proxy(folder, keys, enrolled, listen=listen or ["0.0.0.0:9092"], port=port)
    if reload:
        reload_proxy(folder)
    start = " ".join(command(folder))
    written = str(folder.resolve() / CONFIGURATION)
    facts = {"configuration": written, "parties": parties, "start": start, "reload": f"{start} -s reload"}
    print_result(facts, as_json)


@flower.command(context_settings={"auto_envvar_prefix": "INCROWD_SERVE"})
def serve(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", envvar="INCROWD_SERVE_CONFIG", help="Settings of parties.")
    ],
    keys: Annotated[Path, option("The server's keys: `incrowd flower keys`.", "DIR")],
    override: Overrides = None,
    out: Annotated[Path | None, option("A folder for the run, new or of one that stopped.", "DIR")] = None,
    port: Annotated[int, option("The port to listen at, on loopback.")] = 9091,
    least: Annotated[int | None, option("Begin with so many parties; with all of them without it.")] = None,
    timeout: Annotated[float, option("Seconds that a round waits for its parties.")] = 600.0,
    try_out: Annotated[bool, flag("--try", "Ask the parties whether they would, and stop there.")] = False,
    ledger: LedgerOption = None,
    witness: WitnessOption = None,
    log_json: LogJson = False,
    as_json: Json = False,
) -> None:
    """Train one private federation with real parties, who hold the data and are asked over the network.

    It listens on loopback alone: parties elsewhere come through nginx, see `incrowd flower proxy`. The same command
    goes on with a run that was stopped (SIGTERM: exit status 0) or killed. Its settings say data.name = "parties".

    Example: incrowd flower serve federation.toml --keys server --out out/hearts
    """
    need_training()
    need_flower()
    from incrowd.federation import Federation
    from incrowd.flower.serve import PartyServer
    from incrowd.parties.asking import Patience
    from incrowd.parties.server import as_event, to_stderr
    from incrowd.runs.run import free_folder

    log_to_stderr(as_json=log_json)
    say = as_event if log_json else to_stderr
    server = PartyServer(keys=keys, port=port, least=least, patience=Patience(timeout=timeout), say=say)
    federation = Federation.from_settings(config, overrides=[*(override or []), *ledger_overrides(ledger, witness)])
    server.check(federation)
    if try_out:
        found = server.try_out(federation)
        print_result({"parties": found} if as_json else found, as_json)
        raise typer.Exit(0 if set(found.values()) == {"yes"} else 1)
    run = federation.run_in(free_folder(Path("out")) if out is None else out)
    told = threading.Event()

    def interrupt(*_: object) -> None:
        told.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        finish(run, as_json, train=server.train, again="the same command")
    except typer.Exit as ended:
        raise typer.Exit(0 if told.is_set() else ended.exit_code) from None
    except (IncrowdError, OSError) as error:
        if log_json:
            as_event(f"failed: {error}")
        raise


@flower.command(context_settings={"auto_envvar_prefix": "INCROWD_JOIN"})
def join(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", envvar="INCROWD_JOIN_FOLDER", help="A party's folder: `incrowd party new`.")
    ],
    idle_poll: Annotated[float, option("Seconds between looks while nothing comes.")] = 1.0,
    log_json: LogJson = False,
    as_json: Json = False,
) -> None:
    """Take part as a party, on its own ledger and under its owner's rules, until it is stopped.

    Nothing that the server sends is run. The data stay here, and are read once, before the first question. With --json
    what the party has given is printed when it is stopped, as `incrowd party show` does.

    Example: incrowd flower join amber
    """
    need_training()
    need_flower()
    from incrowd.flower.node import join as attend
    from incrowd.parties.folder import PartyFolder
    from incrowd.parties.guard import given

    log_to_stderr(as_json=log_json)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    attend(PartyFolder.read(folder), stop, idle_poll=idle_poll)
    if as_json:
        print_json(given(folder, begun=False))


@party.command()
def show(
    file: Annotated[Path, argument("FILE", "The party's ledger, or its folder.")],
    metrics: Metrics = False,
    as_json: Json = False,
) -> None:
    """List what a party was asked, by which server, at what noise, what it comes to, and what it refused.

    Example: incrowd party show hospital/ledger.sqlite
    """
    need("flower", "cryptography")
    from incrowd.parties.guard import given

    found = given(file)
    print_result(found, as_json, partial(_print_metrics if metrics else _print_given, found))
    if not found["intact"]:
        raise typer.Exit(1)


def _print_metrics(found: dict[str, Any]) -> None:
    budget = found.get("budget", {}).get("epsilon")
    spent = {"spent": found["epsilon"], "promised": found.get("promised"), "budget": budget}
    counts = {"answered": len(found["events"]), "refused": len(found["refused"])}
    figures = {"epsilon": spent, "questions": counts, "ledger": {"intact": int(found["intact"])}}
    print_metrics("incrowd_party", WATCHED, "of", figures)


def _print_given(found: dict[str, Any]) -> None:
    print_facts({name: value for name, value in found.items() if name not in ("events", "refused")})
    print_table([row | {"plan": row["plan"][:12]} for row in found["events"]])
    for each in found["refused"]:
        what = "an offer" if each["round"] is None else f"round {each['round']}"
        typer.echo(f"refused {each['at']}  {what}: {each['why']}")


@party.command("new")
def new_party(
    folder: Annotated[Path, argument("DIR", "A new folder for the party.")],
    invitation: Annotated[Path, option("The invitation.json that the server gave.", "FILE")],
    name: Annotated[str | None, option("The party's name; that of its folder without it.")] = None,
    table: Annotated[Path | None, option("Its table, whose header is read.", "TABLE")] = None,
    as_json: Json = False,
) -> None:
    """Make a party's keys, its enrolment for the server, and the file in which its owner states what is allowed.

    Compare both fingerprints with the server over another way than the files take, say the telephone.

    Example: incrowd party new amber --invitation invitation.json --table visits.csv
    """
    need_party()
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
    print_result(facts, as_json)


@party.command()
def check(folder: Annotated[Path, argument("DIR", "A party's folder.")], as_json: Json = False) -> None:
    """Read the party's own data as its file states them, and say which column does not fit. Nothing leaves.

    Example: incrowd party check amber
    """
    need_party()
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
    print_result(facts, as_json)


@party.command()
def compare(
    enrolled: Annotated[Path, argument("DIR", "A folder with the NAME.pub of every party.")],
    accept: Annotated[Path | None, option("A party's folder, whose owner has compared the fingerprint.", "DIR")] = None,
    as_json: Json = False,
) -> None:
    """Show the fingerprint of all parties' keys, for two owners to compare by telephone.

    Parties that share noise trust no server for each other's keys. With --accept a party takes part with this roster
    alone.

    Example: incrowd party compare enrolled --accept amber
    """
    need_party()
    from incrowd.parties.folder import PartyFolder
    from incrowd.parties.keys import read_roster

    roster = read_roster(enrolled)
    if accept is not None:
        PartyFolder.read(accept).compared(roster)
    facts = {"fingerprint": roster.shown, "parties": list(roster.names), "accepted": accept is not None}
    print_result(facts, as_json)


@party.command()
def leave(folder: Annotated[Path, argument("DIR", "A party's folder.")], as_json: Json = False) -> None:
    """Leave for good: the ledger gives the unspent reservation back, and keeps all that was given.

    Example: incrowd party leave amber
    """
    need_party()
    from incrowd.parties.folder import PartyFolder

    PartyFolder.read(folder).leave()
    said = f"{folder} has left; what it gave is still in: incrowd party show {folder}"
    print_result({"party": str(folder), "left": True}, as_json, said=said)
