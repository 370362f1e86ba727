"""`incrowd bench`: how fast the engine is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from harness.results import say
from incrowd import ConfigError, IncrowdError
from incrowd.cli import Json, need_training, print_json, whole_numbers, words

_OWN = ("records", "simulation", "service")
"""What is measured in a way of its own."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bench(
    work: Annotated[
        str, typer.Option(help="What to measure, commas between: works of clients, records, service; simulation alone.")
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
    asked = words(work)
    alone = asked[:1] if asked[:1] in (("records",), ("simulation",)) and not memory else ()
    parts = {alone[0]: asked[1:]} if alone and not set(asked[1:]) & set(_OWN) else _by_kind(asked, memory=memory)
    for name in parts:
        _only_as_it_is(name, device=device, clients=clients, examples=examples)
    _say_what_counts(parts, {"--against": against, "--batch": batch, "--data": data})
    if set(parts) - {"service"}:
        need_training()
    settings = _Settings(
        against=words(against),
        batch=whole_numbers("batch", batch) if batch else None,
        folder=data,
        quick=quick,
        workers=whole_numbers("workers", workers),
        device=device,
        clients=clients,
        examples=examples,
        memory=memory,
    )
    contests = {name: settings.contest(name, networks, alone=len(parts) == 1) for name, networks in parts.items()}
    found: list[dict[str, object]] = []
    for name, contest in contests.items():
        try:
            report = contest.run(say)
        except IncrowdError as error:  # what the others took minutes for is not lost
            if len(contests) == 1:
                raise
            found.append({"skipped": {name: str(error)}})
            say(f"{name} was left out: {error}")
            continue
        found.append(report.to_dict())
        if not as_json:
            typer.echo(report.to_text() + "\n")
    if as_json:
        print_json(_together(found))


class _Report(Protocol):
    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        ...

    def to_text(self) -> str:
        """For people."""
        ...


class _Contest(Protocol):
    def run(self, say: Callable[[str], object]) -> _Report:
        """Measure."""
        ...


def _by_kind(asked: Sequence[str], *, memory: bool) -> dict[str, tuple[str, ...]]:
    """What is measured in ways of its own, and the works that clients do."""
    own = [name for name in _OWN if name in asked]
    if own and ("simulation" in own or memory):
        value = "simulation" if "simulation" in own else own[0]
        raise ConfigError(field="work", value=value, remedy="measure it on its own, without --memory")
    others = tuple(name for name in asked if name not in own)
    return {**({"works": others} if others or not own else {}), **dict.fromkeys(own, ())}


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What was asked for, of whichever contest there is."""

    against: tuple[str, ...]
    batch: tuple[int, ...] | None
    folder: Path | None
    quick: bool
    workers: tuple[int, ...]
    device: str
    clients: int | None
    examples: int | None
    memory: bool

    def contest(self, name: str, networks: tuple[str, ...], *, alone: bool) -> _Contest:
        """Of the works, or of one that has a way of its own; peers that are for others only count where there are."""
        if name == "service":
            from contest.service import ServiceContest

            return ServiceContest(seconds=2.0 if self.quick else 8.0)
        if name == "simulation":
            return self._simulation(networks)
        return self._records(networks, alone=alone) if name == "records" else self._works(networks, alone=alone)

    def _works(self, works: tuple[str, ...], *, alone: bool) -> _Contest:
        from contest import records
        from contest.compare import PEERS, Contest
        from contest.works import named

        against = self.against if alone else tuple(one for one in self.against if one not in records.PEERS)
        return Contest(
            works=[named(name).of(clients=self.clients, examples=self.examples) for name in works],
            batch_sizes=(10, 100) if self.batch is None else self.batch,
            against=against or (() if self.against else tuple(PEERS)),
            folder=self.folder,
            turns=1 if self.quick else 3,
            memory=self.memory,
            device=self.device,
        )

    def _records(self, networks: tuple[str, ...], *, alone: bool) -> _Contest:
        from contest import compare, records
        from contest.works import named

        against = self.against if alone else tuple(one for one in self.against if one not in compare.PEERS)
        return records.RecordContest(
            models=[named(name).name for name in networks] or records.MODELS,
            batch_sizes=(100,) if self.batch is None else self.batch,
            against=against or (() if self.against else records.PEERS),
            folder=self.folder,
            rounds=1 if self.quick else 9,
            device=self.device,
        )

    def _simulation(self, networks: tuple[str, ...]) -> _Contest:
        from contest.simulation import MODELS, SimulationContest
        from contest.works import named

        if self.batch and len(self.batch) > 1:
            raise ConfigError(field="batch", value=self.batch, remedy="give one size: simulation has one")
        return SimulationContest(
            works=[named(name) for name in networks or MODELS],
            workers=self.workers,
            batch_size=(self.batch or (10,))[0],
            folder=self.folder,
            rounds=1 if self.quick else 3,
        )


def _together(found: Sequence[dict[str, object]]) -> dict[str, object]:
    """Several reports as one: what they list after each other, what they name beside each other."""
    merged: dict[str, object] = {}
    for report in found:
        for name, value in report.items():
            before = merged.get(name)
            if isinstance(before, list) and isinstance(value, list):
                merged[name] = before + value
            elif isinstance(before, dict) and isinstance(value, dict):
                merged[name] = before | value
            else:
                merged[name] = value
    return merged


def _say_what_counts(parts: Iterable[str], given: Mapping[str, object]) -> None:
    """Say so where an option that is for others is given to what is measured on its own."""
    for name, others in (("service", given), ("simulation", ("--against",))):
        useless = [option for option in others if given[option]]
        if list(parts) == [name] and useless:
            say(f"{name} is measured as it is: {', '.join(useless)} makes no difference to it")


def _only_as_it_is(work: str, *, device: str, clients: int | None, examples: int | None) -> None:
    if work == "works":
        return
    for field, value, usual in (("device", device, "cpu"), ("clients", clients, None), ("examples", examples, None)):
        if value != usual and (work, field) != ("records", "device"):
            remedy = f"leave it out: {work} has its own; it is for works such as linear or cnn"
            raise ConfigError(field=field, value=value, remedy=remedy)
