"""`incrowd flower`: the same federations on Flower."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from incrowd._log import log_to_stderr
from incrowd.cli._options import (
    DataFolder,
    Json,
    LedgerOption,
    LogJson,
    Overrides,
    SettingsFile,
    WitnessOption,
    ledger_overrides,
    need_training,
)
from incrowd.cli._print import print_facts, print_json
from incrowd.cli.train import finish
from incrowd.errors import ConfigError, IncrowdError
from incrowd.flower import need_flower

app = typer.Typer(
    help="The same federations beyond one machine, on Flower.\n\nExample: incrowd flower new heart",
    no_args_is_help=True,
)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
    as_json: Json = False,
) -> None:
    """Write an app of Flower's that trains under a plan and a ledger, for `flwr run` and stock nodes.

    Stock nodes run whatever the server sends them: parties that want a guard of their own use serve and join.

    Example: incrowd flower new heart
    """
    from incrowd.flower.new import new_app

    written = new_app(folder)
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in written]})
    else:
        typer.echo(f"{folder}: put your own training into client_app.py, then: flwr run {folder}")


@app.command()
def simulate(
    config: SettingsFile = None,
    override: Overrides = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder for the run, new or of one that stopped.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Ray workers, of one thread each; one a processor.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Into how many blocks a cohort is dealt; one a worker.")] = None,
    gpus: Annotated[float, typer.Option(help="The share of an accelerator that each worker has.")] = 0.0,
    address: Annotated[str | None, typer.Option(help="A Ray cluster that runs; without one, Ray is started.")] = None,
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


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for the server's keys.")],
    host: Annotated[list[str], typer.Option(help="A name or an address of the server; may be repeated.")],
    port: Annotated[int, typer.Option(help="The port that parties reach it at.")] = 9092,
    renew: Annotated[bool, typer.Option("--renew", help="Make the certificate alone anew, for the same key.")] = False,
    authority: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The ca.crt of a SuperLink that somebody else runs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a server's keys and certificate, and the invitation that every party is given.

    Compare the fingerprint with each party over another way than the file takes, say the telephone.

    Example: incrowd flower keys server --host fl.example.org
    """
    need_flower()
    from incrowd import _files
    from incrowd.parties.keys import (
        AUTHORITY,
        INVITATION,
        SERVER,
        days_left,
        new_authority,
        new_invitation,
        new_server_certificate,
    )

    if authority is not None:
        _files.folder(folder)
        _files.write(folder / AUTHORITY, authority.read_bytes())
    else:
        if not renew:
            new_authority(folder)
        new_server_certificate(folder, host, renew=renew)
    made = new_invitation(folder, f"{host[0]}:{port}")
    facts = {
        "invitation": str(folder / INVITATION),
        "fingerprint": made.fingerprint,
        "address": made.address,
        "days": days_left(folder / (SERVER if authority is None else AUTHORITY)),
    }
    print_json(facts) if as_json else print_facts(facts)


@app.command()
def proxy(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for nginx's configuration and logs.")],
    keys: Annotated[Path, typer.Option(metavar="DIR", help="The server's keys: `incrowd flower keys`.")],
    enrolled: Annotated[Path, typer.Option(metavar="DIR", help="The folder with the NAME.pub of each party.")],
    listen: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS:PORT", help="Where to listen; 0.0.0.0:9092 without it.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port of `incrowd flower serve` on loopback.")] = 9091,
    reload: Annotated[bool, typer.Option("--reload", help="Let the running nginx read it anew.")] = False,
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
    print_json(facts) if as_json else print_facts(facts)


@app.command(context_settings={"auto_envvar_prefix": "INCROWD_SERVE"})
def serve(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", envvar="INCROWD_SERVE_CONFIG", help="Settings of parties."),
    ],
    keys: Annotated[Path, typer.Option(metavar="DIR", help="The server's keys: `incrowd flower keys`.")],
    override: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder for the run, new or of one that stopped.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen at, on loopback.")] = 9091,
    least: Annotated[int | None, typer.Option(help="Begin with so many parties; with all of them without it.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a round waits for its parties.")] = 600.0,
    try_out: Annotated[bool, typer.Option("--try", help="Ask the parties whether they would, and stop there.")] = False,
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
        print_json({"parties": found}) if as_json else print_facts(found)
        raise typer.Exit(0 if set(found.values()) == {"yes"} else 1)
    run = federation.run_in(free_folder(Path("out")) if out is None else out)
    stop = _TerminationFlag()
    signal.signal(signal.SIGTERM, stop)
    try:
        finish(run, as_json, train=server.train, again="the same command")
    except typer.Exit as ended:
        raise typer.Exit(0 if stop.told else ended.exit_code) from None
    except (IncrowdError, OSError) as error:
        if log_json:
            as_event(f"failed: {error}")
        raise


@app.command()
def pause(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run that is served.")],
    off: Annotated[bool, typer.Option("--off", help="Go on.")] = False,
    as_json: Json = False,
) -> None:
    """Let no further round of a served run begin, or go on; its parties stay.

    Example: incrowd flower pause out/hearts
    """
    need_training()
    need_flower()
    from incrowd import _files
    from incrowd.parties.server import PAUSED
    from incrowd.runs.folder import DATABASE

    if not (folder / DATABASE).exists():
        raise ConfigError(field="folder", value=str(folder), remedy="give the folder of a run")
    if off:
        _files.remove(folder / PAUSED)
    else:
        _files.write(folder / PAUSED, "")
    if as_json:
        print_json({"run": str(folder), "paused": not off})


@app.command(context_settings={"auto_envvar_prefix": "INCROWD_JOIN"})
def join(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", envvar="INCROWD_JOIN_FOLDER", help="A party's folder: `incrowd party new`.")
    ],
    idle_poll: Annotated[float, typer.Option(help="Seconds between looks while nothing comes.")] = 1.0,
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


class _TerminationFlag:
    """Stops what runs as an interruption does, and remembers that it was told to."""

    told = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.told = True
        raise KeyboardInterrupt
