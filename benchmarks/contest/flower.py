"""Flower: its simulation on Ray, with its own strategy for clipping and noise on the server.

It lives in a process of its own, which answers questions over a pipe: Flower's simulation wants the main thread from
beginning to end, while competitors take turns here. What Ray's worker runs is not nested in other functions, because
it would then be sent along with every message, and forget what it has loaded.
"""

import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from contest.lean import Trainer, flat, trainable
from contest.peak import one_processor
from contest.works import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Task
from harness.arrays import Floats
from incrowd import IncrowdError

if TYPE_CHECKING:
    from flwr.app import ConfigRecordValues, Context, Message
    from flwr.serverapp import Grid

SILENCE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_worker_niceness": "0",  # or whatever else runs here would slow it more than it slows the others
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: Ray then keeps to the loopback address
}
"""Nothing is reported to anyone, nobody else can connect, and no worker is less urgent than the other competitors."""

_RAY: dict[str, "ConfigRecordValues"] = {"include_dashboard": False, "log_to_driver": False}


class FlowerProcess:
    """The process, started when it is first needed, and again for a cohort of another size. Ray has so many workers.

    Edge cases: a process that stops by itself is an error that says how to go on without Flower.
    """

    def __init__(self, serve: Callable[[Connection, int, int], None] | None = None, *, workers: int = 1) -> None:
        self._serve = serve or _serve
        self.workers = workers
        self._clients = 0
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def competitor(self, task: Task) -> "Flower":
        """Flower at one task."""
        return Flower(task, self)

    def ask(self, task: Task, number: int, *, noise_multiplier: float, lean: bool = True) -> tuple[float, Floats]:
        """One round from the first weights: its seconds, and the new weights."""
        try:
            pipe = self._opened(task.work.cohort)
            pipe.send((task, number, noise_multiplier, lean))
            seconds, weights = pipe.recv()
        except (EOFError, OSError) as error:
            raise IncrowdError("Flower's simulation stopped (see above): leave it out with --against") from error
        return seconds, weights

    @property
    def number(self) -> int | None:
        """The process's number; None where none runs."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process, and Ray with it."""
        if self._pipe is not None and self._process is not None:
            self._pipe.close()  # which the process takes for the end
            self._process.join(timeout=30)
            self._process.kill()
        self._clients, self._process, self._pipe = 0, None, None

    def _opened(self, clients: int) -> Connection:
        if self._pipe is None or self._clients != clients:
            self.close()
            context = multiprocessing.get_context("spawn")
            self._pipe, there = context.Pipe()
            self._process = context.Process(target=self._serve, args=(there, clients, self.workers))
            self._process.start()
            self._clients = clients
            there.close()
        return self._pipe


class Flower:
    """Flower's federated averaging with its central clipping and noise, in which every client takes part.

    Clients train as the lean loop does, or, where they are not `lean`, as Flower's introductions have it: a fresh
    module and torch's data loader. A round is timed where Flower's server runs, so that the pipe does not count.
    """

    def __init__(self, task: Task, process: FlowerProcess, *, lean: bool = True) -> None:
        self.name = "flower" if lean else "flower as introduced"
        self.task, self.lean = task, lean
        self.threads = process.workers
        self._process = process

    def update(self) -> Floats:
        """The sum of the clipped contributions to the first weights in round 0, without noise."""
        _, weights = self._process.ask(self.task, 0, noise_multiplier=0.0, lean=self.lean)
        return (weights - self.task.start.numpy().astype(np.float64)) * self.task.work.cohort

    def round(self, number: int) -> float:
        """One round; its seconds."""
        seconds, _ = self._process.ask(self.task, number, noise_multiplier=NOISE_MULTIPLIER, lean=self.lean)
        return seconds

    def close(self) -> None:
        """There is nothing to close: the process serves other tasks, too."""


def _serve(pipe: Connection, clients: int, workers: int) -> None:
    """What the process does: one simulation, each of whose rounds is asked for."""
    os.environ.update(SILENCE)
    os.dup2(2, 1)  # nothing but results belongs on standard output
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, client = ServerApp(), ClientApp()
    client.train()(train)

    @server.main()
    def main(grid: "Grid", _: "Context") -> None:
        try:
            while True:
                task, number, noise_multiplier, lean = pipe.recv()
                pipe.send(_round(grid, task, number, noise_multiplier=noise_multiplier, lean=lean))
        except EOFError:  # nobody asks any more
            pipe.close()

    try:
        with one_processor() if workers == 1 else nullcontext():
            run_simulation(
                server_app=server,
                client_app=client,
                num_supernodes=clients,
                backend_config={
                    "init_args": {"num_cpus": workers, **_RAY},
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                },
            )
    finally:
        import ray

        ray.shutdown()


def _round(grid: "Grid", task: Task, number: int, *, noise_multiplier: float, lean: bool) -> tuple[float, Floats]:
    """The server's part of a round."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    cohort = task.work.cohort
    everyone = FedAvg(fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=cohort)
    strategy = DifferentialPrivacyServerSideFixedClipping(everyone, noise_multiplier, CLIP_NORM, cohort)
    module = task.work.model().with_weights(task.start)
    config = ConfigRecord({"task": task.to_json(), "number": number, "lean": lean})
    arrays = ArrayRecord({name: one.detach() for name, one in trainable(module).items()})
    begin = time.perf_counter()
    result = strategy.start(grid, arrays, num_rounds=1, train_config=config)
    seconds = time.perf_counter() - begin
    return seconds, flat(list(result.arrays.to_torch_state_dict().values()))


def train(message: "Message", context: "Context") -> "Message":
    """What a client does, in Ray's worker."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    config, start = message.content.config_records["config"], message.content.array_records["arrays"]
    task, trainer = _prepared(str(config["task"]))
    rows = task.rows(int(context.node_config["partition-id"]), round=int(str(config["number"])))
    if config["lean"]:
        trainer.train(list(start.to_torch_state_dict().values()), rows)
        module = trainer.module
    else:
        module = as_introduced(task, trainer, start.to_torch_state_dict(), rows)
    learnt = ArrayRecord({name: one.detach() for name, one in trainable(module).items()})
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": learnt, "metrics": metrics}), reply_to=message)


def as_introduced(task: Task, trainer: Trainer, start: dict[str, Tensor], rows: Tensor) -> nn.Module:
    """Training as Flower's introductions write it down, except that images are floats in memory already."""
    module = task.work.module()
    module.load_state_dict(start, strict=False)  # what is frozen is there already
    images = TensorDataset(trainer.features, trainer.labels)
    loader = DataLoader(images, batch_size=task.batch_size, sampler=rows.tolist())
    criterion, running_loss = nn.CrossEntropyLoss(), 0.0
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(module(x), y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return module


@lru_cache(maxsize=1)
def _prepared(written: str) -> tuple[Task, Trainer]:
    torch.set_num_threads(1)
    task = Task.from_json(written)
    return task, Trainer(task)
