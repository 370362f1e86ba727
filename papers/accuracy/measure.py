"""One private federation for each seed, as anybody may begin it: by a recipe, through the front door."""

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import checks
from harness.seeds import Entry, Say, repeated, silent
from incrowd import (
    Clients,
    ConfigError,
    DataError,
    Federation,
    Local,
    Private,
    RunOptions,
    SeededRandomness,
    ServerOptimizer,
)
from incrowd.data import Columns, Examples, Partition, Split, hold_out, iid, sorted_shards
from incrowd.learning.features import UnitNorm, transform
from incrowd.runs.build import feature_map_of
from papers.accuracy.ceiling import fitted
from papers.accuracy.published import published

DELTAS = {100: 1e-3, 1000: 1e-5, 10_000: 1e-6}
"""Of Geyer, Klein and Nabi (2017); for other numbers of clients it is 1 / (10 clients)."""

RAW = "general"
"""The recipe that knows nothing: raw pixels, the same mechanism."""


@dataclass(frozen=True, kw_only=True)
class RecordSteps:
    """How single records are learnt from: so many rounds, each gradient at this length at most, steps of this rate.

    Records that are told well have short gradients: what a longer bound would let through is noise, and in more rounds
    those directions are learnt, too, in which examples differ little.
    """

    rounds: int = 100
    length: float = 0.3
    rate: float = 500.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is the same in all rows. With `held_out`, so many training examples, declared public, take the place of the
    test examples: for whoever chooses settings. With `ceiling` a fit without noise is measured, too. `table` says what
    the examples' columns mean, if they are rows of one. Seeds begin at `first_seed`: more can be measured later.
    """

    split: Split
    table: Columns | None = None
    seeds: int = 3
    first_seed: int = 0
    cache: Path | None = None
    ceiling: bool = True
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(seeds=self.seeds)
        checks.natural(first_seed=self.first_seed)

    @classmethod
    def on(cls, split: Split, *, held_out: int, strict: int = 0, **others: Any) -> "Bench":
        """The same on training examples that are held out, if there are such; or, `strict`, on the test examples
        without those that would be: who chose settings on them leaves them out of the federation.
        """
        checks.natural(held_out=held_out, strict=strict)
        if held_out and strict:
            raise ConfigError(field="strict", value=strict, remedy="leave out one: held_out measures on those examples")
        if public := held_out or strict:
            parts = hold_out(split.train, name=split.name, test_examples=public, randomness=SeededRandomness(0))
            split = replace(parts, test=split.test) if strict else parts
        return cls(split=split, **others)

    @property
    def test(self) -> Examples:
        """The examples that accuracies are of."""
        if self.split.test is None:
            raise DataError("accuracies are stated: give test examples")
        return self.split.test

    def clients(self, recipe: str, *, clients: int, epsilon: float) -> Entry:
        """A row in which whole clients are protected, who hold two labels each, mostly."""
        delta = DELTAS.get(clients, 1 / (10 * clients))
        privacy = Private(epsilon=epsilon, delta=delta)
        self.say(f"{self.split.name}, {recipe}, {clients} clients, epsilon {epsilon:g}")

        def begin(seed: int) -> Federation:
            return Federation.by_recipe(recipe, self._dealt(clients, seed), privacy=privacy, run=seeded(seed))

        return self.row(begin, recipe=recipe, unit="client", clients=clients, epsilon=epsilon, delta=delta)

    def records(self, recipe: str, *, epsilon: float, delta: float) -> Entry:
        """A row in which single records are protected from each other: each is a client of its own, in every round.

        That is gradient descent on all records, each gradient at a certain length at most (DP-GD). A record has one
        label, whose share tells nothing, so that label shares are left out.
        """
        self.say(f"{self.split.name}, {recipe}, records, epsilon {epsilon:g}")
        count = len(self.split.train)
        steps = RecordSteps()
        clip = {"kind": "fixed", "clip_norm": steps.length}
        promise = {"epsilon": epsilon, "delta": delta, "rounds": steps.rounds, "sampling": "everyone", "clip": clip}
        server = ServerOptimizer(kind="momentum", learning_rate=steps.rate, decay="linear", average="tail")

        def begin(seed: int) -> Federation:
            alone = iid(self.split.train.labels, clients=count, randomness=SeededRandomness(seed=seed))
            return Federation.by_recipe(
                recipe,
                self.held_by(alone),
                privacy=Private.model_validate(promise),
                local=Local(label_shares=None),
                server=server,
                run=seeded(seed),
            )

        return self.row(begin, recipe=recipe, unit="record", clients=count, epsilon=epsilon, delta=delta)

    def majority(self) -> float:
        """How right is who always says the most frequent class."""
        return float(np.bincount(self.test.labels).max() / len(self.test))

    def _dealt(self, clients: int, seed: int) -> Clients:
        """Two shards of one label each for every client; a set with fewer images than that is dealt repeatedly."""
        labels = self.split.train.labels
        each = max(2, len(labels) // 100 // 2 * 2)
        randomness = SeededRandomness(seed=seed)
        return self.held_by(sorted_shards(labels, clients=clients, per_client=each, randomness=randomness))

    def held_by(self, partition: Partition) -> Clients:
        """The training examples, divided so."""
        return replace(Clients.of(self.split, partition, public=True), table=self.table)

    def row(self, begin: Callable[[int], Federation], **row: Any) -> Entry:
        """What several seeds of a federation reach."""
        first = self._as_told(begin(self.first_seed))
        repeats = repeated(
            lambda seed: trained(self._as_told(begin(seed))),
            seeds=range(self.first_seed, self.first_seed + self.seeds),
            told="accuracy {:.4f}".format,
            say=self.say,
        )
        known = published(self.split.name, unit=row["unit"], epsilon=row["epsilon"], delta=row["delta"])
        return {
            "data_set": self.split.name,
            **row,
            "accuracy": statistics.fmean(repeats.runs),
            "standard_error": standard_error(repeats.runs),
            "accuracies": list(repeats.runs),
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "without_noise": self._without_noise(first) if self.ceiling else None,
            "majority": self.majority(),
            "published": [{"accuracy": one.accuracy, "source": one.source} for one in known],
            "seconds": repeats.seconds,
        }

    def _as_told(self, federation: Federation) -> Federation:
        features = federation.settings.features
        if self.cache is not None:
            features = features.replaced(cache=str(self.cache.resolve()))
        federation.settings = federation.settings.replaced(features=features)
        return federation

    def _without_noise(self, federation: Federation) -> float:
        """A linear fit on the features that the federation sees."""
        features = feature_map_of(federation.settings.features, self.split.train.shape, self.table)
        features = UnitNorm(centred=True) if features is None else features
        train, test = (transform(features, one, cache=self.cache, alone=False) for one in (self.split.train, self.test))
        return fitted(train, test)


def trained(federation: Federation) -> float:
    """The accuracy of the model that a federation releases; its folder is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        accuracy = federation.train(Path(folder, "run"), progress=False).accuracy
    if accuracy is None:
        raise DataError("accuracies are stated: give labels that are classes")
    return accuracy


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean over the seeds; None for one seed."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def seeded(seed: int) -> RunOptions:
    """How a simulation of this seed is executed."""
    return RunOptions(randomness="seeded", seed=seed, report_every=1000)
