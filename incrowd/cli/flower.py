"""`incrowd flower`: the same federations on Flower."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json, need_training
from incrowd.cli.train import finish

app = typer.Typer(help="The same federations beyond one machine, on Flower.", no_args_is_help=True)


@app.command()
def simulate(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; without them, the demonstration.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value; may be repeated.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that holds data sets.")] = None,
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

    The result is that of `incrowd train` with the same settings, to the last bit where randomness is seeded. A run that
    stopped goes on in the same folder, here or by `incrowd resume`.

    Example: incrowd flower simulate examples/mnist.toml --data data --workers 8 --out out/mnist
    """
    need_training()
    from incrowd.flower.simulation import Simulation, need_flower
    from incrowd.runs.folder import DATABASE
    from incrowd.runs.run import Run, free_folder
    from incrowd.runs.settings import settings_of, tables

    need_flower()
    simulation = Simulation(workers=workers, blocks=blocks, gpus=gpus, address=address)
    if out is not None and (out / DATABASE).exists():
        run = Run.open(out)
    else:
        wanted = settings_of(tables(config, overrides=override or [], data=data))
        run = Run.create(wanted, free_folder(Path("out")) if out is None else out)
    finish(run, as_json, train=simulation.train)
