"""How fast the cohort engine is: against a lean hand-written torch loop and the measured peak of a matrix product.

    python benchmarks/cohort.py --data DIR          DIR holds the four MNIST files in DIR/mnist
    python benchmarks/cohort.py --only cnn --json   one model; one line of JSON for each result

Without --data, random images of MNIST's sparsity are used. 1,000 clients hold 600 examples each, of two classes; every
one of a cohort trains for one epoch, and the contributions are clipped and summed. The loop and the engine take turns,
on the same cohorts; the figures are medians over the rounds. Everything has one thread, but for the last column.
Operations are counted as dense SGD needs them, whatever the engine really executes, so the share of the peak can exceed
100 %.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness
from incrowd.data import Examples, FederatedData, load_mnist, sorted_shards
from incrowd.learning import ClientTensors, CohortEngine, LocalTraining, Model, linear, mlp, small_cnn

EXAMPLES, CLIENTS, RATE, CLIP = 600, 1000, 0.1, 1.0


class PlainCNN(nn.Module):
    """The small CNN as a user writes it down."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.hidden, self.output = nn.Linear(1024, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, rectify, pool; twice; then two dense layers."""
        x = torch.max_pool2d(torch.relu(self.conv1(x.reshape(-1, 1, 28, 28))), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        out: Tensor = self.output(torch.relu(self.hidden(x.flatten(1))))
        return out


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.LayerNorm(200), nn.GELU(), nn.Linear(200, 10))


@dataclass(frozen=True)
class Work:
    """A model as the engine takes it and as a user would write it, and what an example costs (dense, forward)."""

    model: Callable[[], Model]
    plain: Callable[[], nn.Module]
    layers: Sequence[int]  # floating point operations of each layer
    cohort: int


def _perceptron(*widths: int, cohort: int) -> Work:
    operations = [2 * inputs * outputs for inputs, outputs in pairwise(widths)]
    return Work(lambda: mlp(widths), lambda: mlp(widths).module, operations, cohort)


WORKS = {
    "784-10": replace(_perceptron(784, 10, cohort=100), model=lambda: linear(784, 10)),
    "784-200-10": _perceptron(784, 200, 10, cohort=40),
    "784-600-100-10": _perceptron(784, 600, 100, 10, cohort=24),
    "cnn": Work(small_cnn, PlainCNN, [2 * 24 * 24 * 32 * 25, 2 * 8 * 8 * 64 * 800, 2 * 1024 * 128, 2 * 1280], cohort=4),
    "layer norm": Work(lambda: Model(_normalised()), _normalised, [2 * 784 * 200, 2 * 2000], cohort=40),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table; rates are clients a second."""

    model: str
    batch_size: int
    chunk: int
    lean: float
    engine: float
    two_threads: float
    ratio: float
    threads_ratio: float
    share_of_peak: float


def synthetic() -> Examples:
    """60,000 images of 28 x 28 bytes, of which about a fifth is not zero, in ten classes of different shapes."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[-1:1:28j, -1:1:28j]
    labels = np.repeat(np.arange(10), 6000)
    images = np.empty((60_000, 28, 28), np.uint8)
    for label in range(10):
        waves = sum(np.cos(np.pi * (a * x + b * y) + c) for a, b, c in generator.normal(size=(4, 3)) * 1.3)
        of_class = waves - 4.2 * (x**2 + y**2) ** 1.5
        noise = generator.normal(size=(6000, 7, 7)).repeat(4, 1).repeat(4, 2)
        images[labels == label] = np.clip(120 * (of_class + 0.8 * noise), 0, 255)
    return Examples(features=images, labels=labels, classes=10, scale=1 / 255)


class Lean:
    """A careful user's loop: a module, torch.optim.SGD, a client's examples gathered once, no data loader."""

    def __init__(self, module: nn.Module, data: FederatedData, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size
        self.features = torch.from_numpy(data.examples.values(slice(None)))
        self.labels = torch.from_numpy(data.examples.labels)
        self.start = [parameter.detach().clone() for parameter in module.parameters()]
        self.module = module
        self.parameters: list[Tensor] = list(module.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=RATE)

    def round(self, cohort: Sequence[int]) -> list[Tensor]:
        """The sum of the clipped contributions."""
        total = [torch.zeros_like(parameter) for parameter in self.start]
        for client in cohort:
            self._train(client)
            with torch.no_grad():
                change = [now - start for now, start in zip(self.parameters, self.start, strict=True)]
                norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(change))))
                torch._foreach_add_(total, change, alpha=min(1.0, CLIP / norm))
        return total

    def _train(self, client: int) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.start)
        rows = torch.from_numpy(self.data.client(client).astype(np.int64))[torch.randperm(EXAMPLES)]
        x, y = self.features[rows], self.labels[rows]
        for begin in range(0, EXAMPLES, self.batch_size):
            batch = slice(begin, begin + self.batch_size)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.module(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not say its types
            self.optimizer.step()


def engine_round(engine: CohortEngine, weights: Tensor, cohort: Sequence[int], number: int) -> None:
    """Train, clip and sum."""
    total = np.zeros(engine.model.size)
    for chunk in engine.train(weights, cohort, randomness=SeededRandomness(seed=1), round=number):
        chunk.add_to(total, np.minimum(1, CLIP / chunk.norms()))


def peak() -> float:
    """The best rate of a large matrix product on one thread, in operations a second."""
    a, b, c = (torch.randn(1024, 1024) for _ in range(3))
    return 2 * 1024**3 / min(_seconds(lambda: torch.mm(a, b, out=c)) for _ in range(9))


def measure(name: str, batch_size: int, data: FederatedData, rounds: int) -> Result:
    """Let loop and engine take turns."""
    work, model = WORKS[name], WORKS[name].model()
    local = LocalTraining(learning_rate=RATE, batch_size=batch_size)
    lean = Lean(work.plain(), data, batch_size)
    tensors, weights, randomness = (
        ClientTensors.of(data),
        model.initial(SeededRandomness(seed=0)),
        SeededRandomness(seed=2),
    )
    one = CohortEngine(model, tensors, local).measured(range(16), randomness=randomness)
    engine = CohortEngine(model, tensors, local, one)
    double = CohortEngine(model, tensors, local, replace(one, threads=2))
    seconds: dict[str, list[float]] = {"lean": [], "engine": [], "two": []}
    peaks = [peak()]
    for number in range(rounds + 1):
        cohort = np.random.default_rng(number).choice(CLIENTS, work.cohort, replace=False).tolist()
        seconds["lean"].append(_seconds(partial(lean.round, cohort)))
        seconds["engine"].append(_seconds(partial(engine_round, engine, weights, cohort, number)))
        seconds["two"].append(_seconds(partial(engine_round, double, weights, cohort, number)))
        peaks.append(peak())
    rates = {kind: work.cohort / statistics.median(times[1:]) for kind, times in seconds.items()}  # the first warms up
    operations = (3 * sum(work.layers) - work.layers[0]) * EXAMPLES
    return Result(
        model=name,
        batch_size=batch_size,
        chunk=engine.chunk,
        lean=rates["lean"],
        engine=rates["engine"],
        two_threads=rates["two"],
        ratio=rates["engine"] / rates["lean"],
        threads_ratio=rates["two"] / rates["engine"],
        share_of_peak=rates["engine"] * operations / statistics.median(peaks),
    )


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with the MNIST files in its folder mnist")
    parser.add_argument("--only", choices=list(WORKS), help="one model")
    parser.add_argument("--batch", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    examples = load_mnist(options.data / "mnist").train if options.data else synthetic()
    partition = sorted_shards(
        examples.labels, clients=CLIENTS, per_client=EXAMPLES, randomness=SeededRandomness(seed=0)
    )
    data = FederatedData(examples=examples, partition=partition)
    if not options.json:
        print(
            f"{'model':16}{'batch':>6}{'chunk':>6}{'lean/s':>9}{'engine/s':>10}{'ratio':>7}{'peak':>7}{'2 threads':>11}"
        )
    for name in [options.only] if options.only else WORKS:
        for batch_size in options.batch:
            line = measure(name, batch_size, data, options.rounds)
            if options.json:
                print(json.dumps(asdict(line)), flush=True)
            else:
                print(
                    f"{line.model:16}{line.batch_size:6}{line.chunk:6}{line.lean:9.1f}{line.engine:10.1f}{line.ratio:6.2f}x"
                    f"{line.share_of_peak:7.0%}{line.threads_ratio:10.2f}x",
                    flush=True,
                )


if __name__ == "__main__":
    main()
