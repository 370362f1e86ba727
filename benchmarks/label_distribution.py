"""What it is worth to ask how frequent classes are: made-up rows, most of one class.

    python benchmarks/label_distribution.py                       100 clients, epsilon 8, three seeds
    python benchmarks/label_distribution.py --numbers 400 --noise 4 9999 --epsilon 1
    python benchmarks/label_distribution.py --clients 1000 --epsilon 2 --json

Rows of twelve numbers are classed by a noisy sum of them: the `noise` is in units of what they say. They are dealt at
random, or `sorted`, so that clients have rows of one class, nearly. The recipe `general` learns as it advises, without
asking for the label distribution, and without label shares; beside them is the accuracy of a model that always says
the most frequent class.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from incrowd import Clients, Federation, Local, Private, RunOptions
from incrowd.data import Examples, Partition

SHARES = {"5/90/5": (0.05, 0.9, 0.05), "90/10": (0.9, 0.1), "80/10/10": (0.8, 0.1, 0.1), "equal": (0.25,) * 4}
LOCALS = {"asked": None, "not asked": Local(label_distribution=None), "no label shares": Local(label_shares=None)}

_NUMBERS, _NOISE, _EACH, _TEST = 12, 1.2, 30, 4000


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured: the accuracy of each way, by its name."""

    shares: str
    noise: float
    partition: str
    clients: int
    epsilon: float
    accuracies: dict[str, float]
    standard_errors: dict[str, float]
    majority: float


def made_up(
    shares: Sequence[float], count: int, *, seed: int, numbers: int = _NUMBERS, noise: float = _NOISE
) -> Examples:
    """Rows of classes of these shares."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, numbers)).astype(np.float32)
    along = generator.normal(size=numbers)
    noisy = rows @ (along / np.linalg.norm(along)) + noise * generator.normal(size=count)
    labels = np.searchsorted(np.quantile(noisy, np.cumsum(shares)[:-1]), noisy)
    return Examples(features=rows, labels=labels.astype(np.int64), classes=len(shares))


def measure(
    name: str,
    partition: str,
    *,
    clients: int,
    epsilon: float,
    seeds: int,
    numbers: int = _NUMBERS,
    noise: float = _NOISE,
) -> Row:
    """One row: some seeds of each way."""
    found: dict[str, list[float]] = {way: [] for way in LOCALS}
    majority = []
    for seed in range(seeds):
        examples = made_up(SHARES[name], clients * _EACH + _TEST, seed=seed, numbers=numbers, noise=noise)
        train, test = examples.some(slice(clients * _EACH)), examples.some(slice(clients * _EACH, None))
        order = np.arange(len(train)) if partition == "iid" else np.argsort(train.labels, kind="stable")
        dealt = Partition.of(np.array_split(order, clients))
        data = Clients(examples=train, partition=dealt, test=test, name="made up", public=True)
        for way, local in LOCALS.items():
            federation = Federation.by_recipe(
                "general",
                data,
                privacy=Private(epsilon=epsilon, delta=0.1 / clients),
                local=local,
                run=RunOptions(randomness="seeded", seed=seed, report_every=1000),
            )
            with tempfile.TemporaryDirectory() as folder:
                accuracy = federation.train(Path(folder, "run"), progress=False).accuracy
            found[way].append(float("nan") if accuracy is None else accuracy)
        majority.append(float(np.bincount(test.labels).max() / len(test)))
    return Row(
        shares=name,
        noise=noise,
        partition=partition,
        clients=clients,
        epsilon=epsilon,
        accuracies={way: statistics.fmean(each) for way, each in found.items()},
        standard_errors={way: statistics.stdev(each) / seeds**0.5 for way, each in found.items() if seeds > 1},
        majority=statistics.fmean(majority),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each row and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", choices=list(SHARES), nargs="+", default=list(SHARES))
    parser.add_argument("--partition", choices=["iid", "sorted"], nargs="+", default=["iid", "sorted"])
    parser.add_argument("--numbers", type=int, default=_NUMBERS)
    parser.add_argument("--noise", type=float, nargs="+", default=[_NOISE])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    how = {name: getattr(wanted, name) for name in ("clients", "epsilon", "seeds", "numbers")}
    for noise, name in itertools.product(wanted.noise, wanted.shares):
        for partition in wanted.partition:
            row = measure(name, partition, noise=noise, **how)
            shown = ", ".join(f"{way} {accuracy:.3f}" for way, accuracy in row.accuracies.items())
            told = f"{name}, noise {noise:g}, {partition}: {shown}, majority {row.majority:.3f}"
            print(json.dumps(asdict(row)) if wanted.json else told, flush=True)


if __name__ == "__main__":
    main()
