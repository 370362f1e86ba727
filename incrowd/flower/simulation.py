"""A run whose cohorts are trained by blocks of simulated clients on Flower's simulation engine (Ray)."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd import _validate
from incrowd._random import Floats, Randomness, Stream
from incrowd.algorithms.silos import clipped_sum
from incrowd.data.examples import shared_tensor
from incrowd.errors import ConfigError, DataError
from incrowd.flower import need_flower
from incrowd.learning.engine import CohortEngine, EngineTrainer
from incrowd.learning.execution import Execution
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.parties.asking import Patience
from incrowd.parties.contribution import part
from incrowd.parties.frames import Place, Request, sealed_answer
from incrowd.parties.network import Deal, Network, Node, SiloServer, by_party, in_blocks, offer_of
from incrowd.parties.offer import Offer, RoundTask
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.grid import Whole
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import Summary
from incrowd.runs.round_loop import DurableSilo
from incrowd.runs.run import Run
from incrowd.runs.sources import processors
from incrowd.runs.work import ClientWork, RecordWork, SiloWork
from incrowd.settings import Local
from incrowd.types import Tracker

if TYPE_CHECKING:
    from ray import ObjectRef


BLOCK = "block"
"""The name in the answers of blocks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stock:
    """A worker's training data and settings. Ray shares the data among the workers of a machine without a copy."""

    tensors: ClientTensors = field(repr=False)
    engine: Callable[[ClientTensors], CohortEngine]
    offer: Offer
    randomness: Randomness

    @classmethod
    def of(cls, engine: CohortEngine, tensors: ClientTensors, offer: Offer, randomness: Randomness) -> "Stock":
        """The data and settings of an engine, which has one thread in a worker."""
        execution = replace(engine.execution, threads=1, chunk=engine.chunk)
        make = partial(_engine, model=engine.model, local=engine.local, execution=execution, loss=engine.loss)
        return cls(tensors=tensors, engine=make, offer=offer, randomness=randomness)

    def __getstate__(self) -> dict[str, Any]:
        arrays = {one.name: _shared(getattr(self.tensors, one.name)) for one in fields(self.tensors)}
        return {**vars(self), "tensors": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, tensors=ClientTensors(**state["tensors"]))

    def block(self, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> "Block":
        """The clients that answer this server's requests, and sign with this key."""
        return Block(self, server=server, key=key)


def _engine(tensors: ClientTensors, *, model: Model, local: Local, execution: Execution, loss: Loss) -> CohortEngine:
    return CohortEngine(model, tensors, local, execution, loss=loss)


class Block:
    """One worker's engine."""

    def __init__(self, stock: Stock, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> None:
        torch.set_num_threads(1)
        self._stock = stock
        self._engine = stock.engine(stock.tensors)
        self._server = server
        self._key = key

    def answer(self, frame: bytes) -> bytes:
        """The contribution of a block's clients. The run's own ledger has paid for their noise."""
        offer, randomness = self._stock.offer, self._stock.randomness
        request = Request.read(frame, key=self._server, most=offer.weights)
        if request.place.plan != offer.fingerprint:
            raise ConfigError(field="plan", value=request.place.plan, remedy="the block was started for another")
        task, receipt = RoundTask.of(offer, request), None
        if task.noise is not None:
            people, ledger = (
                len(request.clients),
                Ledger.in_memory(budget=task.plan.budget, relation=task.plan.relation),
            )
            event, pays_for = task.plan.round(task.round).event, ((task.noise, people),)
            receipt = ledger.charge(event, pays_for=pays_for, randomness=randomness, people=people)
        place = replace(request.place, party=BLOCK)
        found = part(task, request, place=place, engine=self._engine, randomness=randomness, receipt=receipt)
        return found.to_bytes(self._key, wide=task.expected(place, contributions=len(request.clients)).wide)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloStock:
    """The experiment and the folder with which a worker answers for the silos of a run on its machine."""

    work: SiloWork
    folder: Path
    plan: str

    def block(self, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> "SiloBlock":
        """The silos that answer this server's requests, and sign with this key."""
        return SiloBlock(self, server=server, key=key)


class SiloBlock:
    """Simulated silos, each on its own ledger, opened at its first question."""

    def __init__(self, stock: SiloStock, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> None:
        self._stock = stock
        self._server = server
        self._key = key
        self._open = ExitStack()
        self._silos: dict[int, DurableSilo] = {}

    def answer(self, frame: bytes) -> bytes:
        """The answer of one silo."""
        work, plan = self._stock.work, self._stock.plan
        request = Request.read(frame, key=self._server, most=work.model.size)
        if request.place.plan != plan or len(request.clients) != 1:
            raise DataError("a question that is not for one of these silos")
        [number] = request.clients
        if number not in self._silos:
            self._silos[number] = self._open.enter_context(work.open_silo(number, self._stock.folder))
        answer = self._silos[number].answer(request.place.round, request.weights.astype(np.float64))
        place = Place(plan=plan, round=request.place.round, party=answer.silo)
        return sealed_answer(answer, place, key=self._key)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordStock:
    """The silos of a run whose server adds the noise, with their records."""

    work: RecordWork

    def block(self, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> "RecordBlock":
        """The silos; nothing that they send leaves Ray, so nothing is signed."""
        return RecordBlock(self.work)


@dataclass(frozen=True, kw_only=True, eq=False)
class SumTask:
    """One silo's step: Ray copies it to the worker."""

    place: int
    weights: Floats = field(repr=False)
    batches: Stream = field(repr=False)


class RecordBlock:
    """Simulated silos that send the clipped sums of their batches."""

    def __init__(self, work: RecordWork) -> None:
        torch.set_num_threads(work.threads)
        self._work = work

    def answer(self, task: SumTask) -> Whole:
        """The sum of one silo."""
        engine, training = self._work.engines[task.place], self._work.plan.training()
        return clipped_sum(engine, task.weights, training, batches=task.batches)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordLine:
    """The way to simulated silos that send sums; `all_answers` asks each node its own task."""

    all_answers: Callable[[Mapping[int, SumTask]], Mapping[int, Whole]]
    nodes: Sequence[int]

    def sums(self, number: int, weights: Floats, batches: Callable[[int], Stream]) -> Mapping[int, Whole]:
        """The clipped sums of a round, by place: see `incrowd.algorithms.RecordCohort`."""
        tasks = {
            node: SumTask(place=place, weights=weights, batches=batches(place)) for place, node in enumerate(self.nodes)
        }
        found = self.all_answers(tasks)
        return {place: found[node] for place, node in enumerate(self.nodes)}


def _shared(value: Any) -> Any:
    """Arrays in place of tensors, which Ray copies from process to process."""
    if isinstance(value, torch.Tensor):
        return _Shared(value)
    return {name: _shared(one) for name, one in value.items()} if isinstance(value, Mapping) else value


@dataclass(frozen=True, eq=False)
class _Shared:
    """A tensor that becomes one over the memory of an array in another process."""

    tensor: torch.Tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_tensor, (self.tensor.numpy(),)


@dataclass(frozen=True, kw_only=True, eq=False)
class _App:
    """The app of a worker, which answers frames. `stock` lies in Ray's shared memory."""

    server: bytes
    key: bytes = field(repr=False)
    stock: "ObjectRef[Stock | SiloStock | RecordStock]" = field(repr=False)

    def __call__(self, message: Any, context: None) -> Any:
        if self.server not in _blocks:  # its first message
            import ray

            stock: Stock | SiloStock | RecordStock = ray.get(self.stock)
            _blocks.clear()
            key = Ed25519PrivateKey.from_private_bytes(self.key)
            _blocks[self.server] = stock.block(server=Ed25519PublicKey.from_public_bytes(self.server), key=key)
        return _blocks[self.server].answer(message)


_blocks: dict[bytes, Block | SiloBlock | RecordBlock] = {}


class ActorLine:
    """Nodes on as many of Flower's actors as Ray has room for, for use in a `with` statement: a `Transport`.

    It is a `Clock` as well: a wait ends with the next answer.

    Guarantee: the actors end with the `with` block, also in the middle of their work.
    """

    def __init__(self, app: Callable[..., Any], *, nodes: int, gpus: float = 0.0) -> None:
        self.nodes: Sequence[int] = range(1, nodes + 1)
        self._app = app
        self._gpus = gpus
        self._actors: list[Any] = []
        self._asked: dict[str, Any] = {}

    def __enter__(self) -> Self:
        from flwr.simulation.ray_transport.ray_actor import ClientAppActor, pool_size_from_resources

        resources: dict[str, int | float] = {"num_cpus": 1, "num_gpus": self._gpus}
        try:
            room = pool_size_from_resources(resources)
        except ValueError as error:
            raise DataError(f"Ray has no room for a worker of one processor and {self._gpus:g} accelerators") from error
        kind: Any = ClientAppActor  # Ray has made a class of its own of it
        self._actors += [kind.options(**resources).remote() for _ in range(min(room, len(self.nodes)))]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `Transport.push`. An actor passes frames on to the app as they are."""
        owners, app = dict[str, int](), self._app
        for node in nodes:
            reference = self._actor(node).run.remote(lambda: app, content, str(node), None)
            self._asked[reference.hex()] = reference
            owners[reference.hex()] = node
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Transport.pull`."""
        import ray

        waiting = [self._asked[number] for number in asked if number in self._asked]
        for reference in ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if waiting else ():
            del self._asked[reference.hex()]
            try:
                _, answer, _ = ray.get(reference)
            except ray.exceptions.RayError as error:
                raise DataError(f"a node failed: {error}") from error
            if len(answer) <= longest:
                yield reference.hex(), answer

    def all_answers(self, tasks: Mapping[int, Any], *, seconds: float) -> dict[int, Any]:
        """Each node's answer to its own task, which need not be bytes."""
        import ray

        app = self._app
        asked = [self._actor(node).run.remote(lambda: app, task, str(node), None) for node, task in tasks.items()]
        try:
            return {node: answer for node, (_, answer, _) in zip(tasks, ray.get(asked, timeout=seconds), strict=True)}
        except ray.exceptions.RayError as error:
            raise DataError(f"a node failed: {error}") from error

    def _actor(self, node: int) -> Any:
        return self._actors[self.nodes.index(node) % len(self._actors)]

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        import ray

        if self._asked:
            ray.wait(list(self._asked.values()), num_returns=1, timeout=seconds)
        else:
            time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulation on Ray: so many workers of one thread, and by default as many blocks a round.

    `gpus` is the share of an accelerator of each worker. `address` is a Ray cluster's; without one the simulation
    starts Ray for this run alone.

    Guarantee: the run's folder, ledger, statement and result are those of a run on this machine. So is the released
    model under seeded randomness, to the last bit on one kind of processor, for any blocks and any number of workers.

    Each silo is a node, and writes to its own ledger in the run's folder, so silos stay on one machine.
    """

    workers: int | None = None
    blocks: int | None = None
    gpus: float = 0.0
    address: str | None = None
    patience: Patience = field(default_factory=lambda: Patience(timeout=3600.0, poll=1.0, all_needed=True))

    def __post_init__(self) -> None:
        for name in ("workers", "blocks"):
            if getattr(self, name) is not None:
                _validate.count(**{name: getattr(self, name)})
        _validate.non_negative(gpus=self.gpus)

    def train(self, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end, as `Run.train`."""
        need_flower()
        work = run.work
        if isinstance(run.config.data, Parties):
            remedy = "their data are not here to be simulated: `incrowd flower serve` asks them"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        if isinstance(work, SiloWork):
            return self._silos(run, work, watchers)
        if work.plan.noise_by == "parties":
            remedy = "simulated blocks do not mask their parts: train without Flower, which gives the same model"
            raise ConfigError(field="privacy.noise_by", value=work.plan.noise_by, remedy=remedy)
        if isinstance(work, RecordWork):
            return self._records(run, work, watchers)
        assert isinstance(work, ClientWork)  # noqa: S101 - there are no others
        return self._clients(run, work, watchers)

    def _clients(self, run: Run, work: ClientWork, watchers: Sequence[Tracker]) -> Summary:
        offer = offer_of(work)
        # A run that workers cannot train is refused before Ray starts.
        run.asking(trainers=partial(EngineTrainer, work.engine, randomness=work.randomness))
        RoundTask.stated(offer, 0, work.plan.config.clip)
        stock = Stock.of(work.engine, ClientTensors.of(work.data), offer, work.randomness)
        with self._network(stock, offer, [BLOCK] * (self.blocks or self._workers), in_blocks) as network:
            return run.asking(trainers=network.trainer).train(watchers)

    def _silos(self, run: Run, work: SiloWork, watchers: Sequence[Tracker]) -> Summary:
        if self.address is not None:
            remedy = "silos keep their ledgers in the run's folder: leave it out, and they train on this machine"
            raise ConfigError(field="address", value=self.address, remedy=remedy)
        offer = offer_of(work)
        stock = SiloStock(work=work, folder=run.folder, plan=offer.fingerprint)
        with self._network(stock, offer, work.names, lambda nodes: by_party(dict(enumerate(nodes)))) as network:
            silos = SiloServer(network=network, descent=work.config.local)
            return run.asking(together=silos.answers).train(watchers)

    def _records(self, run: Run, work: RecordWork, watchers: Sequence[Tracker]) -> Summary:
        with self._line(RecordStock(work=work), Ed25519PrivateKey.generate(), nodes=len(work.names)) as (line, _):
            answers = partial(line.all_answers, seconds=self.patience.timeout)
            silos = RecordLine(all_answers=answers, nodes=line.nodes)
            return run.asking(sums=silos.sums).train(watchers)

    @contextmanager
    def _network(
        self, stock: Stock | SiloStock, offer: Offer, parties: Sequence[str], dealt: Callable[[list[Node]], Deal]
    ) -> Iterator[Network]:
        """The network of these nodes, with the stock in Flower's actors."""
        server = Ed25519PrivateKey.generate()
        with self._line(stock, server, nodes=len(parties)) as (line, key):
            named = zip(line.nodes, parties, strict=True)
            nodes = [Node(id=one, party=name, key=key, block=True) for one, name in named]
            patience = replace(self.patience, clock=line)
            yield Network(transport=line, offer=offer, deal=dealt(nodes), key=server, patience=patience)

    @contextmanager
    def _line(
        self, stock: Stock | SiloStock | RecordStock, server: Ed25519PrivateKey, *, nodes: int
    ) -> Iterator[tuple[ActorLine, Ed25519PublicKey]]:
        """So many nodes, with the stock in Flower's actors, and the key that signs their answers."""
        key = Ed25519PrivateKey.generate()
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # errors are raised here
        with self._ray():
            import ray

            public, private = server.public_key().public_bytes_raw(), key.private_bytes_raw()
            app = _App(server=public, key=private, stock=ray.put(stock))
            with ActorLine(app, nodes=nodes, gpus=self.gpus) as line:
                yield line, key.public_key()

    @contextmanager
    def _ray(self) -> Iterator[None]:
        """Ray within the `with` block, unless the program has one already."""
        import ray

        if ray.is_initialized():
            yield
            return
        found = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        where = {"num_cpus": self._workers} if self.address is None else {"address": self.address}
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

    @property
    def _workers(self) -> int:
        return self.workers or processors()
