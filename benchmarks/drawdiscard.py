"""How many updates of draw and discard a second are simulated on one core: softmax regression of 784 features in 10
classes, 10 examples a device, 10 instances.

    python benchmarks/drawdiscard.py            with and without Laplace noise
    python benchmarks/drawdiscard.py --updates 60000 --rounds 5 --json

The rows, which take turns:

    plain       a loop in NumPy, one update after the other, with NumPy's sampler
    floor       nothing but the two matrix products, random bits and their logarithms, and writing the weights
    all         `simulate` where every update leaves a trace (each replaces the instance that it drew)
    simulate    `simulate` for draw and discard, looked at after each 6,000 updates: only what leaves a trace
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # one core, also for the matrix products; before NumPy is loaded

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harness.arrays import Matrix
from incrowd import SeededRandomness
from incrowd.drawdiscard import (
    MULTINOMIAL,
    Coins,
    Genealogy,
    Glm,
    GlmGradients,
    Updates,
    draw_and_discard,
    same_instance,
    seeded_noise,
    simulate,
)
from incrowd.privacy.mechanism import Mechanism

MODEL = Glm(features=784, outputs=10, link=MULTINOMIAL)
DEVICES, EXAMPLES, INSTANCES, RATE = 6_000, 10, 10, 0.001
BLOCK = 2**17  # numbers that are drawn at once
RANDOM = SeededRandomness(1)


@dataclass(frozen=True, eq=False)
class Work:
    """The same examples, order and coins for all rows."""

    inputs: Matrix
    labels: np.ndarray
    updates: int
    noisy: bool

    @property
    def devices(self) -> np.ndarray:
        """Who comes when."""
        return np.arange(self.updates) % DEVICES

    @property
    def mechanism(self) -> Mechanism:
        """The paper's clip, at epsilon = log 3, or no noise."""
        paper = Mechanism(size=MODEL.size, clip=1.0, epsilon=math.log(3), privacy="feature")
        return paper if self.noisy else replace(paper, noise="none")


def plain(work: Work, updates: int) -> int:
    """What one would write down."""
    generator = np.random.Generator(np.random.SFC64(1))
    pool = np.zeros((INSTANCES, 785, 10), np.float32)
    one_hot = np.eye(10, dtype=np.float32)[work.labels]
    drawn, replaced = generator.integers(INSTANCES, size=(2, updates))
    for update in range(updates):
        inputs, weights = work.inputs[update % DEVICES], pool[drawn[update]]
        outputs = inputs @ weights
        outputs = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        outputs /= outputs.sum(axis=1, keepdims=True)
        gradient = np.clip(inputs.T @ (outputs - one_hot[update % DEVICES]) / EXAMPLES, -1, 1)
        updated = weights - RATE * gradient
        if work.noisy:
            updated += generator.laplace(0, 2 * RATE / math.log(3), updated.shape)
        pool[replaced[update]] = updated
    return updates


def floor(work: Work, updates: int) -> int:
    """The least that an update needs."""
    stream = RANDOM.stream("floor")
    pool = np.zeros((INSTANCES, 10, 785), np.float32)
    outputs, gradient = np.empty((10, 10), np.float32), np.empty((10, 785), np.float32)
    rows = BLOCK // MODEL.size
    uniform = np.ones((rows, *gradient.shape), np.float32)
    for update in range(updates):
        inputs, weights = work.inputs[update % DEVICES], pool[update % INSTANCES]
        np.matmul(weights, inputs.T, out=outputs)
        np.matmul(outputs, inputs, out=gradient)
        if work.noisy and update % rows == 0:
            stream.bits(uniform.size // 2)
            np.log(uniform, out=uniform)
            uniform += 1
        np.subtract(weights, gradient, out=pool[(update + 1) % INSTANCES])
        if work.noisy:
            gradient += uniform[update % rows]
    return updates


def simulated(work: Work, coins: Coins, gradients: GlmGradients) -> Callable[[], int]:
    """Our simulation; gives how many updates it computed."""
    moments = range(0, coins.updates + 1, DEVICES)

    def run() -> int:
        noise = seeded_noise(work.mechanism, RANDOM)
        order = work.devices[: coins.updates]
        updates = Updates(gradients=gradients, mechanism=work.mechanism, devices=order, rates=RATE, noise=noise)
        simulate(updates, coins, start=np.zeros((INSTANCES, MODEL.size)), moments=moments)
        return len(Genealogy(coins, moments).needed)

    return run


def measure(work: Work, rounds: int) -> list[dict[str, float | str | bool]]:
    """Each row's rate, and what it is of the plain loop and of the floor: medians over interleaved rounds."""
    gradients = GlmGradients(MODEL, work.inputs, work.labels)
    few = work.updates // 10
    every = same_instance(instances=INSTANCES, updates=few, randomness=RANDOM)
    discarding = draw_and_discard(instances=INSTANCES, updates=work.updates, randomness=RANDOM)
    rows: dict[str, tuple[int, Callable[[], int]]] = {
        "plain": (few, lambda: plain(work, few)),
        "floor": (few, lambda: floor(work, few)),
        "all": (few, simulated(work, every, gradients)),
        "simulate": (work.updates, simulated(work, discarding, gradients)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    computed = {}
    for _ in range(rounds):
        for name, (_, run) in rows.items():
            started = time.process_time()
            computed[name] = run()
            seconds[name].append(time.process_time() - started)
    results: list[dict[str, float | str | bool]] = []
    for name, (updates, _) in rows.items():
        pairs = zip(seconds["plain"], seconds["floor"], seconds[name], strict=True)
        against_plain, against_floor = zip(
            *((p / few * updates / own, f / few * computed[name] / own) for p, f, own in pairs), strict=True
        )
        results.append(
            {
                "row": name,
                "noise": work.noisy,
                "updates_per_second": updates / statistics.median(seconds[name]),
                "share_computed": computed[name] / updates,
                "times_plain": statistics.median(against_plain),
                "of_floor_per_computed_update": statistics.median(against_floor),
            }
        )
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    generator = np.random.Generator(np.random.SFC64(2))
    inputs = generator.random((DEVICES, EXAMPLES, 785), np.float32)
    inputs[generator.random(inputs.shape, np.float32) < 0.8] = 0  # as empty as MNIST
    inputs[..., 0] = 1
    labels = generator.integers(10, size=(DEVICES, EXAMPLES))
    results = [
        result
        for noisy in (False, True)
        for result in measure(Work(inputs, labels, options.updates, noisy), options.rounds)
    ]
    if options.json:
        print(json.dumps({"results": results}))
        return
    print(f"{'row':10} {'noise':6} {'updates/s':>10} {'computed':>9} {'x plain':>8} {'of the floor':>13}")
    for result in results:
        print(
            f"{result['row']:10} {'yes' if result['noise'] else 'no':6} {result['updates_per_second']:10.0f} "
            f"{result['share_computed']:9.1%} {result['times_plain']:8.2f} "
            f"{result['of_floor_per_computed_update']:13.0%}"
        )


if __name__ == "__main__":
    main()
