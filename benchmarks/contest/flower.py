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
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from contest.lean import Trainer, flat
from contest.peak import one_processor
from contest.works import CLIP_NORM, NOISE_MULTIPLIER, Task
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

_RAY: dict[str, "ConfigRecordValues"] = {"num_cpus": 1, "include_dashboard": False, "log_to_driver": False}


class FlowerProcess:
    """The process, started when it is first needed, and again for a cohort of another size.

    Edge cases: a process that stops by itself is an error that says how to go on without Flower.
    """

    def __init__(self, serve: Callable[[Connection, int], None] | None = None) -> None:
        self._serve = serve or _serve
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

    def ask(self, task: Task, number: int, *, noise_multiplier: float) -> tuple[float, Floats]:
        """One round from the first weights: its seconds, and the new weights."""
        try:
            pipe = self._opened(task.work.cohort)
            pipe.send((task, number, noise_multiplier))
            seconds, weights = pipe.recv()
        except (EOFError, OSError) as error:
            raise IncrowdError("Flower's simulation stopped (see above): leave it out with --against") from error
        return seconds, weights

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
            self._process = context.Process(target=self._serve, args=(there, clients))
            self._process.start()
            self._clients = clients
            there.close()
        return self._pipe


class Flower:
    """Flower's federated averaging with its central clipping and noise, in which every client takes part.

    Clients train as the lean loop does. A round is timed where Flower's server runs, so that the pipe does not count.
    """

    name, threads = "flower", 1

    def __init__(self, task: Task, process: FlowerProcess) -> None:
        self.task = task
        self._process = process

    def update(self) -> Floats:
        """The sum of the clipped contributions to the first weights in round 0, without noise."""
        _, weights = self._process.ask(self.task, 0, noise_multiplier=0.0)
        return (weights - self.task.start.numpy().astype(np.float64)) * self.task.work.cohort

    def round(self, number: int) -> float:
        """One round; its seconds."""
        seconds, _ = self._process.ask(self.task, number, noise_multiplier=NOISE_MULTIPLIER)
        return seconds

    def close(self) -> None:
        """There is nothing to close: the process serves other tasks, too."""


def _serve(pipe: Connection, clients: int) -> None:
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
                pipe.send(_round(grid, *pipe.recv()))
        except EOFError:  # nobody asks any more
            pipe.close()

    try:
        with one_processor():
            run_simulation(
                server_app=server,
                client_app=client,
                num_supernodes=clients,
                backend_config={"init_args": _RAY, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
            )
    finally:
        import ray

        ray.shutdown()


def _round(grid: "Grid", task: Task, number: int, noise_multiplier: float) -> tuple[float, Floats]:
    """The server's part of a round."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    cohort = task.work.cohort
    everyone = FedAvg(fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=cohort)
    strategy = DifferentialPrivacyServerSideFixedClipping(everyone, noise_multiplier, CLIP_NORM, cohort)
    module = task.work.model().with_weights(task.start)
    config = ConfigRecord({"task": task.to_json(), "number": number})
    arrays = ArrayRecord(module.state_dict())
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
    trainer.train(list(start.to_torch_state_dict().values()), rows)
    learnt, metrics = ArrayRecord(trainer.module.state_dict()), MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": learnt, "metrics": metrics}), reply_to=message)


@lru_cache(maxsize=1)
def _prepared(written: str) -> tuple[Task, Trainer]:
    torch.set_num_threads(1)
    task = Task.from_json(written)
    return task, Trainer(task)
