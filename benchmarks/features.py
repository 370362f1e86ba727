"""How fast the feature maps are on all of MNIST, and what a linear model makes of them without any privacy.

    python benchmarks/features.py --data DIR            DIR holds the four MNIST files, or has them in DIR/mnist
    python benchmarks/features.py --data DIR --rich     also with second-order energies (a minute or two)
    python benchmarks/features.py --data DIR --json     one line of JSON for each map

The model is softmax regression; 100 clients of 600 images of two classes each send their full-batch gradient scaled to
norm 1, the server steps along the mean, 40 rounds, and the mean of the second half of the models is tested. There is no
noise: the accuracy says how good the features are. `learn` is what a map takes to prepare itself, once.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from incrowd import SeededRandomness
from incrowd.data import Clients, Split, load_mnist, sorted_shards
from incrowd.learning.features import (
    FeatureMap,
    GlyphMetric,
    MomentNormalisation,
    OrientedEnergies,
    SecondOrderEnergies,
    UnitNorm,
    compose,
    transform_federated,
)

CLIENTS, PER_CLIENT, ROUNDS, RATE, BIAS = 100, 600, 40, 32.0, 0.3


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured for one map."""

    features: str
    numbers: int  # of each example
    learn_s: float
    transform_s: float  # all examples
    accuracy: float


def maps(*, rich: bool) -> dict[str, FeatureMap]:
    """The maps to measure; each name says what it adds to the first of its group."""
    moments, centred = MomentNormalisation(), UnitNorm(centred=True)
    drawn = compose(moments, OrientedEnergies())
    chosen: dict[str, FeatureMap] = {
        "pixels": UnitNorm(),
        "pixels, moments": compose(moments, UnitNorm()),
        "energies": OrientedEnergies(),
        "energies, centred": compose(OrientedEnergies(), centred),
        "moments, energies, centred": compose(drawn, centred),
        "moments, energies, metric 64": GlyphMetric(base=drawn, dimensions=64),
        "moments, energies, metric 128": GlyphMetric(base=drawn, dimensions=128),
    }
    if rich:
        second = compose(moments, SecondOrderEnergies())
        chosen["moments, second order"] = second
        chosen["moments, second order, metric 256"] = GlyphMetric(base=second, dimensions=256)
    return chosen


def measure(name: str, feature_map: FeatureMap, data: Clients) -> Result:
    """Time and accuracy of one map."""
    start = time.perf_counter()
    feature_map(data.examples.values(slice(0, 1)))
    learnt = time.perf_counter()
    features = transform_federated(feature_map, data, alone=False)
    done = time.perf_counter()
    return Result(
        features=name,
        numbers=features.examples.shape[0],
        learn_s=learnt - start,
        transform_s=done - learnt,
        accuracy=accuracy(features),
    )


def accuracy(data: Clients) -> float:
    """What softmax regression by normalised steps reaches on the test examples."""
    test = data.test
    if test is None:
        raise SystemExit("accuracy needs test examples")
    tensors = data.as_tensors()
    indices = tensors.indices.view(data.clients, -1).long()
    weights = torch.zeros(10, data.examples.shape[0] + 1)
    total = torch.zeros_like(weights)
    for round in range(ROUNDS):
        step = torch.zeros_like(weights)
        for some in torch.split(indices, 5):
            step += _gradients(weights, tensors.features[some], tensors.labels[some]).sum(dim=0)
        weights = weights - RATE * (1 - round / ROUNDS) * step / data.clients
        weights -= weights.mean(dim=0)
        if round >= ROUNDS // 2:
            total += weights
    scores = _with_bias(torch.from_numpy(test.features)) @ total.T
    return float((scores.argmax(dim=1).numpy() == test.labels).mean())


def _gradients(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """The full-batch gradient of each client, of norm 1."""
    inputs = _with_bias(features)
    errors = torch.softmax(inputs @ weights.T, dim=-1) - torch.nn.functional.one_hot(labels, 10)
    gradients = torch.bmm(errors.mT, inputs)
    scaled: Tensor = gradients / (gradients.norm(dim=(1, 2), keepdim=True) + 1e-12)
    return scaled


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, torch.full((*features.shape[:-1], 1), BIAS)], dim=-1)


def federation(split: Split) -> Clients:
    """The federation of Geyer, Klein and Nabi with 100 clients."""
    labels = np.asarray(split.train.labels, np.int64)
    partition = sorted_shards(labels, clients=CLIENTS, per_client=PER_CLIENT, randomness=SeededRandomness(seed=0))
    return Clients.of(split, partition)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the four MNIST files")
    parser.add_argument("--rich", action="store_true", help="also second-order energies")
    parser.add_argument("--only", help="maps whose name contains this")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each result")
    arguments = parser.parse_args()
    inner = arguments.data / "mnist"
    data = federation(load_mnist(inner if inner.is_dir() else arguments.data))
    if not arguments.json:
        print(f"{'features':<36}{'numbers':>8}{'learn':>9}{'transform':>11}{'accuracy':>10}")
    for name, feature_map in maps(rich=arguments.rich).items():
        if arguments.only is not None and arguments.only not in name:
            continue
        result = measure(name, feature_map, data)
        if arguments.json:
            print(json.dumps(asdict(result)), flush=True)
            continue
        times = f"{result.learn_s:>7.1f} s{result.transform_s:>9.1f} s"
        print(f"{name:<36}{result.numbers:>8}{times}{result.accuracy:>10.4f}", flush=True)


if __name__ == "__main__":
    main()
