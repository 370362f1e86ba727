"""Nodes that are blocks of simulated clients: what Ray's workers run.

A worker holds the engine of the whole data set, whose arrays lie once in a machine's shared memory, and trains
whichever clients it is asked for. It sends one integer sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from incrowd._random import Randomness
from incrowd.data.inputs import shared_tensor
from incrowd.errors import ConfigError
from incrowd.flower.offer import Offer
from incrowd.flower.rounds import frame_in, record_of
from incrowd.flower.wire import Request
from incrowd.flower.work import RoundTask, part
from incrowd.learning import ClientTensors, CohortEngine, Execution, Loss, Model
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.settings import Local

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from ray import ObjectRef


BLOCK = "block"
"""The name in which blocks answer."""


class Answering(Protocol):
    """What a worker makes of its stock, and keeps from round to round."""

    def answer(self, frame: bytes | None) -> bytes:
        """What it says to a request."""
        ...


class Stocked(Protocol):
    """What workers need to answer."""

    def block(self, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> Answering:
        """What answers requests of this server, and signs with this key."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Stock:
    """What a worker trains with: plain arrays, which Ray shares among the workers of a machine without a copy."""

    tensors: Mapping[str, Any] = field(repr=False)
    model: Model
    local: Local
    loss: Loss
    execution: Execution
    offer: Offer
    randomness: Randomness

    @classmethod
    def of(cls, engine: CohortEngine, tensors: ClientTensors, offer: Offer, randomness: Randomness) -> "Stock":
        """What an engine trains with."""
        found = {one.name: _shared(getattr(tensors, one.name)) for one in fields(tensors)}
        return cls(
            tensors=found,
            model=engine.model,
            local=engine.local,
            loss=engine.loss,
            execution=replace(engine.execution, threads=1, chunk=engine.chunk),
            offer=offer,
            randomness=randomness,
        )

    def engine(self) -> CohortEngine:
        """The same engine elsewhere, with one thread."""
        tensors = ClientTensors(**{name: _tensors(value) for name, value in self.tensors.items()})
        return CohortEngine(self.model, tensors, self.local, self.execution, loss=self.loss)

    def block(self, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> "Block":
        """What answers."""
        return Block(self, server=server, key=key)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shelf:
    """Where workers find the stock: put down once, when Ray is up, and told to every worker with its first message."""

    server: bytes
    key: bytes = field(repr=False)
    _stock: list["ObjectRef[Stocked]"] = field(default_factory=list, repr=False)

    def fill(self, stock: "Stocked") -> None:
        """Put the stock where workers reach it."""
        import ray

        self._stock[:] = [ray.put(stock)]

    def __call__(self, message: "Message", context: "Context") -> "Message":
        """What a block answers: see `train`."""
        from flwr.app import Message

        answer = _block(self).answer(frame_in(message.content))
        return Message(record_of(answer), reply_to=message)

    @property
    def stock(self) -> "Stocked":
        """What was put down."""
        import ray

        found: Stocked = ray.get(self._stock[0])
        return found


class Block:
    """One worker's engine, kept from round to round."""

    def __init__(self, stock: Stock, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> None:
        torch.set_num_threads(1)
        self.stock = stock
        self.engine = stock.engine()
        self._server = server
        self._key = key

    def answer(self, frame: bytes | None) -> bytes:
        """What the clients of a block come to."""
        stock, offer = self.stock, self.stock.offer
        request = Request.read(frame, key=self._server, most=offer.weights)
        if request.place.plan != offer.fingerprint:
            raise ConfigError(field="plan", value=request.place.plan, remedy="the block was started for another")
        task = RoundTask.of(offer, request)
        receipt = _receipt(task, len(request.clients), stock.randomness)
        place = replace(request.place, party=BLOCK)
        found = part(task, request, place=place, engine=self.engine, randomness=stock.randomness, receipt=receipt)
        return found.to_bytes(self._key, compress=False)


def _receipt(task: RoundTask, clients: int, randomness: Randomness) -> Receipt | None:
    """What pays for the noise of simulated clients: the run's own ledger was charged before they were asked."""
    if task.noise is None:
        return None
    plan = task.offer.plan
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    return ledger.charge(
        plan.round(task.round).event, pays_for=((task.noise, clients),), randomness=randomness, people=clients
    )


_blocks: dict[bytes, Answering] = {}


def _block(shelf: Shelf) -> Answering:
    """The block of the worker, made with its first message."""
    if shelf.server not in _blocks:
        _blocks.clear()
        server = Ed25519PublicKey.from_public_bytes(shelf.server)
        _blocks[shelf.server] = shelf.stock.block(server=server, key=Ed25519PrivateKey.from_private_bytes(shelf.key))
    return _blocks[shelf.server]


def _shared(value: Any) -> Any:
    """Arrays in place of tensors: these are copied from process to process, those are not."""
    if isinstance(value, torch.Tensor):
        return _Shared(value.numpy())
    if isinstance(value, Mapping):
        return {name: _shared(one) for name, one in value.items()}
    return value


def _tensors(value: Any) -> Any:
    if isinstance(value, _Shared):
        return shared_tensor(value.values)
    if isinstance(value, dict):
        return {name: _tensors(one) for name, one in value.items()}
    return value


@dataclass(frozen=True, eq=False)
class _Shared:
    """An array that was a tensor."""

    values: NDArray[Any]
