"""A run whose cohorts or silos are trained by workers of Flower's simulation engine (Ray).

A worker answers tasks with a function that it makes once, from a stock that Ray shares among the workers of a machine
without a copy. Tasks and answers stay within Ray, so nothing is signed.
"""

import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from incrowd import _validate
from incrowd._random import Floats, Randomness, Stream
from incrowd.algorithms.silos import Answer, clipped_sum
from incrowd.data.examples import each, shared_tensor
from incrowd.errors import ConfigError, DataError
from incrowd.flower import need_flower
from incrowd.learning.engine import CohortEngine
from incrowd.learning.inputs import ClientTensors
from incrowd.parties.contribution import part
from incrowd.parties.network import AskedCohort, AskedTrainer, added, offer_of
from incrowd.parties.offer import Offer, RoundTask
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipped_sum import Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import Summary
from incrowd.runs.round_loop import DurableSilo
from incrowd.runs.run import Run
from incrowd.runs.sources import processors
from incrowd.runs.work import ClientWork, RecordWork, SiloWork
from incrowd.types import Tracker

if TYPE_CHECKING:
    from ray import ObjectRef

Stock = Callable[[], Callable[..., Any]]
"""Makes the function with which a worker answers tasks."""

Workers = Callable[[Sequence[tuple[Any, ...]]], list[Any]]
"""Answers the tasks of a round, in order. The tasks of one place go to one worker."""


class Block:
    """A worker's engine, of one thread, which trains blocks of a cohort."""

    def __init__(self, engine: Callable[[], CohortEngine], offer: Offer, randomness: Randomness) -> None:
        torch.set_num_threads(1)
        self._engine, self._offer, self._randomness = engine(), offer, randomness

    def __call__(self, weights: Floats, clients: Sequence[int], number: int, clip: Clip) -> Part:
        """The sum of these clients. The run's own ledger has paid for their noise."""
        task, receipt = RoundTask.stated(self._offer, number, clip), None
        if task.noise is not None:
            ledger = Ledger.in_memory(budget=task.plan.budget, relation=task.plan.relation)
            event, pays_for = task.plan.round(number).event, ((task.noise, len(clients)),)
            receipt = ledger.charge(event, pays_for=pays_for, randomness=self._randomness, people=len(clients))
        return part(task, weights, clients, engine=self._engine, randomness=self._randomness, receipt=receipt)


class Silos:
    """Simulated silos, each on its own ledger, opened at its first question."""

    def __init__(self, work: SiloWork, folder: Path) -> None:
        self._work, self._folder = work, folder
        self._open = ExitStack()
        self._silos: dict[int, DurableSilo] = {}

    def __call__(self, place: int, number: int, weights: Floats) -> Answer:
        """The answer of one silo."""
        if place not in self._silos:
            self._silos[place] = self._open.enter_context(self._work.open_silo(place, self._folder))
        return self._silos[place].answer(number, weights)


class Sums:
    """Simulated silos that send the clipped sums of their batches."""

    def __init__(self, work: RecordWork) -> None:
        torch.set_num_threads(work.threads)
        self._work = work

    def __call__(self, place: int, weights: Floats, batches: Stream) -> Whole:
        """The sum of one silo."""
        return clipped_sum(self._work.engines[place], weights, self._work.plan.training(), batches=batches)


def _arrays(tensors: ClientTensors) -> dict[str, Any]:
    """The fields of tensors as arrays, which Ray shares; it copies tensors from process to process."""
    features = each(torch.Tensor.numpy, tensors.features)
    return {**vars(tensors), "features": features, "labels": tensors.labels.numpy()}


def _tensors(arrays: dict[str, Any]) -> ClientTensors:
    features = each(shared_tensor, arrays["features"])
    return ClientTensors(**arrays | {"features": features, "labels": shared_tensor(arrays["labels"])})


def stock_of(run: Run) -> Stock:
    """What the workers of a run need."""
    work = run.work
    if isinstance(work, SiloWork):
        return partial(Silos, work, run.folder)
    if isinstance(work, RecordWork):
        return partial(Sums, work)
    assert isinstance(work, ClientWork)  # noqa: S101 - there are no others
    execution = replace(work.engine.execution, threads=1, chunk=work.engine.chunk)
    tensors = ClientTensors.of(work.data)
    engine = partial(CohortEngine, work.model, tensors, work.engine.local, execution, loss=work.engine.loss)
    return partial(Block, engine, offer_of(work), work.randomness)


def over(run: Run, workers: Workers, *, blocks: int) -> Run:
    """The same run, trained by workers, which get each cohort in so many blocks."""
    work = run.work

    def answers(number: int, weights: Floats) -> list[Answer]:
        return workers([(place, number, weights) for place in range(work.data.clients)])

    def sums(_: int, weights: Floats, batches: Callable[[int], Stream]) -> Mapping[int, Whole]:
        tasks = [(place, weights, batches(place)) for place in range(work.data.clients)]
        return dict(enumerate(workers(tasks)))

    if isinstance(work, SiloWork):
        return run.asking(together=answers)
    if isinstance(work, RecordWork):
        return run.asking(sums=sums)
    assert isinstance(work, ClientWork)  # noqa: S101 - there are no others
    offer = offer_of(work)
    RoundTask.stated(offer, 0, work.plan.config.clip)

    def cohort(weights: Floats, clients: Sequence[int], number: int) -> AskedCohort:
        dealt = [its.tolist() for its in np.array_split(np.asarray(clients, np.int64), blocks) if its.size]

        def collected(clip: Clip) -> Part:
            parts = workers([(weights, its, number, clip) for its in dealt])
            return added(RoundTask.stated(offer, number, clip), parts)

        return AskedCohort(clients, collected)

    return run.asking(trainers=partial(AskedTrainer, cohort))


@dataclass(frozen=True, kw_only=True, eq=False)
class _App:
    """The app of a worker: the function that a stock makes, which it keeps. The stock lies in Ray's shared memory."""

    name: str
    stock: "ObjectRef[Stock]" = field(repr=False)

    def __call__(self, message: Any, context: None) -> Any:
        if self.name not in _made:  # its first task
            import ray

            _made.clear()
            _made[self.name] = ray.get(self.stock)()
        return _made[self.name](*message)


_made: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulation on Ray: so many workers of one thread, and by default as many blocks a round.

    `gpus` is the share of an accelerator of each worker. `address` is a Ray cluster's; without one the simulation
    starts Ray for this run alone. A round whose workers take more than `timeout` seconds stops the run.

    Guarantee: the run's folder, ledger, statement and result are those of a run on this machine. So is the released
    model under seeded randomness, to the last bit on one kind of processor, for any blocks and any number of workers.
    The workers end with the run, also in the middle of their work.

    Each silo writes to its own ledger in the run's folder, so silos stay on one machine.
    """

    workers: int | None = None
    blocks: int | None = None
    gpus: float = 0.0
    address: str | None = None
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("workers", "blocks"):
            if getattr(self, name) is not None:
                _validate.count(**{name: getattr(self, name)})
        _validate.non_negative(gpus=self.gpus)
        _validate.positive(timeout=self.timeout)

    def train(self, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end, as `Run.train`."""
        need_flower()
        if isinstance(run.config.data, Parties):
            remedy = "their data are not here to be simulated: `incrowd flower serve` asks them"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        if run.work.plan.noise_by == "parties":
            remedy = "simulated blocks do not mask their parts: train without Flower, which gives the same model"
            raise ConfigError(field="privacy.noise_by", value=run.work.plan.noise_by, remedy=remedy)
        if self.address is not None and isinstance(run.work, SiloWork):
            remedy = "silos keep their ledgers in the run's folder: leave it out, and they train on this machine"
            raise ConfigError(field="address", value=self.address, remedy=remedy)
        most = self.workers or processors()
        over(run, lambda _: [], blocks=1)  # a run that workers cannot train is refused before Ray starts
        blocks = self.blocks or most if isinstance(run.work, ClientWork) else run.work.data.clients
        with self._ray(), self._actors(stock_of(run), most=blocks) as workers:
            return over(run, workers, blocks=blocks).train(watchers)

    @contextmanager
    def _actors(self, stock: Stock, *, most: int) -> Iterator[Workers]:
        """So many of Flower's actors at most, as many as Ray has room for, within the `with` block."""
        import ray
        from flwr.simulation.ray_transport.ray_actor import ClientAppActor, pool_size_from_resources

        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # errors are raised here
        resources: dict[str, int | float] = {"num_cpus": 1, "num_gpus": self.gpus}
        try:
            room = pool_size_from_resources(resources)
        except ValueError as error:
            raise DataError(f"Ray has no room for a worker of one processor and {self.gpus:g} accelerators") from error
        ray.util.register_serializer(ClientTensors, serializer=_arrays, deserializer=_tensors)
        kind: Any = ClientAppActor  # Ray has made a class of its own of it
        app = _App(name=uuid.uuid4().hex, stock=ray.put(stock))
        actors = [kind.options(**resources).remote() for _ in range(min(room, most))]

        def answers(tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
            asked = [
                actors[place % len(actors)].run.remote(lambda: app, task, str(place), None)
                for place, task in enumerate(tasks)
            ]
            try:
                return [answer for _, answer, _ in ray.get(asked, timeout=self.timeout)]
            except ray.exceptions.RayError as error:
                raise DataError(f"a worker failed: {error}") from error

        try:
            yield answers
        finally:
            for actor in actors:
                ray.kill(actor)

    @contextmanager
    def _ray(self) -> Iterator[None]:
        """Ray within the `with` block, unless the program has one already."""
        import ray

        if ray.is_initialized():
            yield
            return
        found = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        where = {"num_cpus": self.workers or processors()} if self.address is None else {"address": self.address}
        ray.init(
            **where,
            runtime_env={"env_vars": {"PYTHONPATH": found}},
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
        try:
            yield
        finally:
            ray.shutdown()
