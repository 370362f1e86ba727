"""The worth of each part of the features of pictures, on training examples declared public.

    python benchmarks/feature_ablation.py --data DIR
    python benchmarks/feature_ablation.py --data DIR --sets cifar10 --clients 1000 --seeds 1

Each variant lacks one part. Of 12,000 training examples, drawn at random, 4,000 are measured on; the others are dealt
to clients that have two labels each, mostly. Each map is trained as recipes train, at epsilon 8. Partition and noise
are the same for all variants of a seed.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from incrowd import Clients, Federation, Private, RunOptions, SeededRandomness
from incrowd.data import Examples, sorted_shards
from incrowd.learning.features import (
    ColourPictures,
    FeatureMap,
    GreyPictures,
    MadeUpPictures,
    PatchResponses,
    SecondOrderEnergies,
    Whitened,
    WithPixels,
    from_callable,
    transform,
)
from incrowd.learning.features.feature_map import Values
from papers.accuracy.sets import load_set

TRAIN, HELD_OUT, DIMENSIONS, MADE_UP = 8000, 4000, 256, 4500
DELTAS = {100: 1e-3, 1000: 1e-5}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Features of pictures that lack one part."""

    base: Callable[[], FeatureMap]
    whitening: float = 0.4
    raw: float | None = None


def _patches(*, colour: bool) -> FeatureMap:
    made = MadeUpPictures(count=1500, colour=colour, blank=0.1 if colour else 0.5)
    patches = PatchResponses(pictures=made, directions=200 if colour else 64)

    def seen(values: Values) -> Values:
        return patches(values if colour else values[:, None])

    return from_callable(seen, name=f"patches {colour}")


GREY = {
    "all": Variant(base=GreyPictures),
    "without patches": Variant(base=lambda: SecondOrderEnergies(stride=4)),
    "without second-order energies": Variant(base=lambda: _patches(colour=False)),
    "without pixels": Variant(base=GreyPictures, raw=0.0),
    "not whitened": Variant(base=GreyPictures, whitening=0.0),
}
COLOURS = {
    "all": Variant(base=ColourPictures),
    "not mirrored": Variant(base=lambda: _patches(colour=True)),
    "without pixels": Variant(base=ColourPictures, raw=0.0),
    "not whitened": Variant(base=ColourPictures, whitening=0.0),
}


def mapped(variant: Variant, examples: Examples, *, colour: bool) -> Examples:
    """The features of a variant."""
    side = (32, 32) if colour else (28, 28)
    made = MadeUpPictures(count=MADE_UP, colour=colour, blank=0.1 if colour else 0.5)
    known = Whitened(base=variant.base(), shape=side, pictures=made, dimensions=DIMENSIONS, whitening=variant.whitening)
    raw = (0.03 if colour else 0.01) if variant.raw is None else variant.raw
    whole: FeatureMap = WithPixels(base=known, raw=raw) if raw else known
    return transform(whole, examples, alone=False)


def accuracy(examples: Examples, *, clients: int, seed: int) -> float:
    """The accuracy of a private federation on examples that were held out."""
    train, test = examples.some(slice(TRAIN)), examples.some(slice(TRAIN, None))
    each = max(2, TRAIN // 100 // 2 * 2)
    partition = sorted_shards(train.labels, clients=clients, per_client=each, randomness=SeededRandomness(seed=seed))
    data = Clients(examples=train, partition=partition, test=test, name="ablation", public=True)
    federation = Federation.by_recipe(
        "general",
        data,
        privacy=Private(epsilon=8.0, delta=DELTAS[clients]),
        run=RunOptions(randomness="seeded", seed=seed, report_every=1000),
    )
    with tempfile.TemporaryDirectory() as folder:
        found = federation.train(Path(folder, "run"), progress=False).accuracy
    return float("nan") if found is None else found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["fashion", "mnist", "cifar10"])
    parser.add_argument("--clients", type=int, choices=list(DELTAS), default=100)
    parser.add_argument("--seeds", type=int, default=4)
    wanted = parser.parse_args(arguments)
    for name in wanted.sets:
        train = load_set(name, wanted.data).train
        some = np.random.default_rng(0).permutation(len(train))[: TRAIN + HELD_OUT]
        examples = replace(train, features=train.features[some], labels=train.labels[some])
        colour = name == "cifar10"
        for variant, how in (COLOURS if colour else GREY).items():
            seen = mapped(how, examples, colour=colour)
            found = [accuracy(seen, clients=wanted.clients, seed=seed) for seed in range(wanted.seeds)]
            error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
            print(
                f"| {name} | {wanted.clients} | {variant} | {statistics.fmean(found):.4f} ± {error:.4f} |", flush=True
            )


if __name__ == "__main__":
    main()
