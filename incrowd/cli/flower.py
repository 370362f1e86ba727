"""`incrowd flower`: the same federations on Flower."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import DataFolder, Json, Overrides, SettingsFile, need_training
from incrowd.cli.train import finish

app = typer.Typer(help="The same federations beyond one machine, on Flower.", no_args_is_help=True)


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
