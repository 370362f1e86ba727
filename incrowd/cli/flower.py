"""`incrowd flower`: the same federations on Flower."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import DataFolder, Json, Overrides, SettingsFile, need_training
from incrowd.cli._print import print_json
from incrowd.cli.train import finish

app = typer.Typer(help="The same federations beyond one machine, on Flower.", no_args_is_help=True)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
    as_json: Json = False,
) -> None:
    """Write an app of Flower's that trains under a plan and a ledger, for `flwr run` and stock nodes.

    Stock nodes run whatever the server sends them: whose parties want a brake of their own, use serve and join.

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
    as_json: Json = False,
) -> None:
    """Train one private federation, its clients in blocks on Flower's simulation engine (Ray).

    The result is that of `incrowd train` with the same settings, to the last bit where randomness is seeded. The same
    command goes on with a run that stopped, and so does `incrowd resume`, on this machine alone.

    Example: incrowd flower simulate examples/mnist.toml --data data --workers 8 --out out/mnist
    """
    need_training()
    from incrowd.federation import Federation
    from incrowd.flower.simulation import Simulation, need_flower
    from incrowd.runs.run import free_folder

    need_flower()
    simulation = Simulation(workers=workers, blocks=blocks, gpus=gpus, address=address)
    federation = Federation.from_settings(config, overrides=override or [], data=data)
    run = federation.run_in(free_folder(Path("out")) if out is None else out)
    finish(run, as_json, train=simulation.train)
