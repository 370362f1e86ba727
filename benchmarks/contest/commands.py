"""`incrowd bench`: how fast the engine is."""

from pathlib import Path
from typing import Annotated

import typer

from harness.results import say
from incrowd import ConfigError
from incrowd.cli import Json, need_training, print_json, whole_numbers, words

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bench(
    work: Annotated[
        str, typer.Option(help="What to measure, commas between; or records, simulation or service, on its own.")
    ] = "linear,mlp,mlp600,cnn",
    against: Annotated[
        str, typer.Option(help="Whom to compare with, commas between; without it lean,pfl,flower, at records opacus.")
    ] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes, commas between; without it 10,100, at records 100.")] = "",
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that holds mnist/; without it, synthetic images.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round each instead of several.")] = False,
    workers: Annotated[str, typer.Option(help="At simulation: numbers of Ray's workers, commas between.")] = "1,2",
    device: Annotated[str, typer.Option(help="Where to compute, say cuda; Flower runs on processors only.")] = "cpu",
    clients: Annotated[int | None, typer.Option(help="Another number of clients a round.")] = None,
    examples: Annotated[int | None, typer.Option(help="Another number of examples a client, of 60,000 in all.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Also the memory of a very large round.")] = False,
    as_json: Json = False,
) -> None:
    """How fast the engines are, beside other ways to do the same work, in one run.

    Example: incrowd bench --work mlp --against lean --data data
    """
    if words(work)[:1] in (("records",), ("simulation",), ("service",)):
        _only_as_it_is(words(work)[0], device=device, clients=clients, examples=examples)
    if words(work) == ("service",):
        _service(quick=quick, as_json=as_json)
        return
    need_training()
    from contest import records
    from contest.compare import PEERS, Contest
    from contest.records import RecordContest
    from contest.simulation import MODELS, SimulationContest
    from contest.works import named

    contest: Contest | RecordContest | SimulationContest
    if words(work)[:1] == ("simulation",) and not memory:
        contest = SimulationContest(
            works=[named(name) for name in words(work)[1:] or MODELS],
            workers=whole_numbers("workers", workers),
            batch_size=whole_numbers("batch", batch or "10")[0],
            folder=data,
            rounds=1 if quick else 3,
        )
    elif words(work)[:1] == ("records",) and not memory:
        contest = RecordContest(
            models=[named(name).name for name in words(work)[1:]] or records.MODELS,
            batch_sizes=whole_numbers("batch", batch or "100"),
            against=words(against or "opacus"),
            folder=data,
            rounds=1 if quick else 9,
            device=device,
        )
    else:
        contest = Contest(
            works=[named(name).of(clients=clients, examples=examples) for name in words(work)],
            batch_sizes=whole_numbers("batch", batch or "10,100"),
            against=words(against or ",".join(PEERS)),
            folder=data,
            rounds=1 if quick else 3,
            memory=memory,
            device=device,
        )
    report = contest.run(say)
    print_json(report.to_dict()) if as_json else typer.echo(report.to_text())


def _only_as_it_is(work: str, *, device: str, clients: int | None, examples: int | None) -> None:
    for field, value, usual in (("device", device, "cpu"), ("clients", clients, None), ("examples", examples, None)):
        if value != usual and (work, field) != ("records", "device"):
            remedy = f"leave it out: {work} has its own; it is for works such as linear or cnn"
            raise ConfigError(field=field, value=value, remedy=remedy)


def _service(*, quick: bool, as_json: bool) -> None:
    """`--work service`: it needs no torch."""
    from contest.service import ServiceContest

    report = ServiceContest(seconds=2.0 if quick else 8.0).run(say)
    print_json(report.to_dict()) if as_json else typer.echo(report.to_text())
