"""Ranking items by what a user writes, as in Pihur et al. (2018), section VI-B: about 7,000 items, 50,000 weights.

The paper's data are not public and it reports no measure of quality, so the world is made up (see `ranked_items`); what
is to be seen is that a model of this size works: its load, its memory, and what the noise costs the ranking.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from harness import checks
from harness.arrays import Floats, Integers
from harness.pictures import SIMULATED, axes, dress, files, logarithmic
from harness.results import Finding
from harness.seeds import Entry, Say, silent
from incrowd import Budget, Ledger, Relation, SeededRandomness, SystemRandomness
from incrowd.drawdiscard import (
    HISTORY,
    LOGISTIC,
    Glm,
    GlmGradients,
    Pool,
    Updates,
    draw_and_discard,
    seeded_noise,
    simulate,
    with_intercept,
)
from incrowd.privacy.ledger import Receipt
from incrowd.privacy.mechanism import Contribution, Mechanism
from papers.ddml.hot_keys import Store, keys, needed
from papers.ddml.ranked_items import World
from papers.ddml.study import Case

TEXTS_A_DEVICE = 5
"""Each with the item that was chosen and another one: ten examples."""

TEST_TEXTS = 500
TOP = 100
WITHIN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""Of so many items ranked highest: how often the chosen one is among them."""

PAPER = {"items": 7_000, "weights": 50_000, "model_bytes": 1_000_000, "updates_per_second": 200}

PRIVATE = Case(
    label="draw and discard, private",
    instances=20,
    epsilon=math.log(32),
    learning_rate=1.3,
    clip=0.005,
    decay=1.0,
    tail=0.2,
)
QUIET = Case(label="draw and discard, no noise", instances=20, learning_rate=1.3, decay=1.0)
ALONE = Case(label="one model, no noise", instances=1, learning_rate=1.0, decay=1.0)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """A world, so many devices in it, and so many updates by them."""

    world: World = field(default_factory=World)
    devices: int = 20_000
    updates: int = 200_000
    seed: int = 1
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(devices=self.devices, updates=self.updates)

    def report(self) -> Entry:
        """Quality with and without noise, the load and the memory of a server, and what agrees."""
        table = [self.measure(case) for case in (PRIVATE, QUIET, ALONE)]
        bounds = [self._row("the writers' own likings", self.world.likings[self._test[1]])]
        bounds.append(self._row("no model", np.zeros((TEST_TEXTS, self.world.items))))
        load = self.load()
        rows = [*table, *bounds]
        series = [{"label": row["label"], "within": list(WITHIN), "share": row.pop("share")} for row in rows]
        report = {
            "items": self.world.items,
            "weights": self.world.weights,
            "active_features": 1 + self._features.nnz / self._features.shape[0],
            "updates": self.updates,
            "table": rows,
            "series": series,
            "load": load,
            "paper": PAPER,
            "hot_keys": keys(Store()),
            "instances_needed": needed(),
            "promise": PRIVATE.mechanism(self.world.weights).describe(),
        }
        return report | {"findings": [one.to_json() for one in _findings(report)]}

    def measure(self, case: Case) -> Entry:
        """How high the items that people chose are ranked, after all updates."""
        started = time.perf_counter()
        weights = self.learn(case)
        row = self._row(case.label, self.world.scores(weights, self._test[0]))
        self.say(f"{case.label}: mean place {row['mean_place']:.0f} ({time.perf_counter() - started:.0f} s)")
        return row

    def learn(self, case: Case) -> Floats:
        """The weights that would be released."""
        randomness = SeededRandomness(self.seed)
        mechanism = case.mechanism(self.world.weights)
        rates = case.rates(self.updates)
        updates = Updates(
            gradients=self._gradients,
            mechanism=mechanism,
            devices=(randomness.stream("devices").bits(self.updates) % np.uint64(self.devices)).astype(np.int64),
            rates=rates,
            noise=seeded_noise(mechanism, randomness),
        )
        pool = Pool.initial(
            np.zeros(self.world.weights),
            instances=case.instances,
            update_variance=mechanism.noise_variance * float(rates[0]) ** 2 if case.epsilon else 0.0,
            randomness=randomness,
        )
        tail = np.linspace((1 - case.tail) * self.updates, self.updates, 20 if case.tail else 1)
        coins = draw_and_discard(instances=case.instances, updates=self.updates, randomness=randomness)
        moments = [round(moment) for moment in tail]
        learned: Floats = simulate(updates, coins, start=pool.instances, moments=moments).astype(np.float64)
        return np.asarray(learned.mean(axis=0))

    def load(self) -> Entry:
        """What one update costs a server, in memory and on one core, and what it costs a device."""
        size, randomness = self.world.weights, SystemRandomness()
        mechanism = PRIVATE.mechanism(size)
        pool = Pool.initial(
            np.zeros(size), instances=PRIVATE.instances, update_variance=mechanism.noise_variance, randomness=randomness
        )
        gradient = self._gradients.gradient(np.zeros(size, np.float32), 0).astype(np.float64)

        ledger = Ledger.in_memory(budget=Budget(epsilon=1e12, delta=1e-6), relation=Relation.REPLACE_ONE)

        def paid(each: Mechanism) -> Receipt:
            return ledger.charge(each.event("model"), pays_for=each.pays_for)

        def release() -> None:
            Contribution(mechanism, gradient).release(charge=paid)

        on_server = _cpu_seconds(lambda: pool.discard(pool.draw()), times=200)
        on_device = _cpu_seconds(release, times=10)
        drawn = pool.draw()
        return {
            "updates_per_second": 1 / on_server,
            "device_milliseconds": 1e3 * on_device,
            "draw_bytes": drawn.nbytes,
            "discard_bytes": drawn.nbytes,
            "pool_bytes": (pool.k + HISTORY) * drawn.nbytes,  # the instances, and the versions that they replaced
        }

    def _row(self, label: str, scores: Floats) -> Entry:
        place = _places(scores, self._test[2])
        return {
            "label": label,
            "mean_place": float(place.mean()),
            "median_place": statistics.median(place.tolist()),
            f"in_top_{TOP}": float((place < TOP).mean()),
            "roc_auc": float(1 - place.mean() / (self.world.items - 1)),
            "share": [float((place < most).mean()) for most in WITHIN],
        }

    @cached_property
    def _gradients(self) -> GlmGradients:
        inputs, each = with_intercept(self._features), 2 * TEXTS_A_DEVICE
        examples = [inputs[each * device : each * (device + 1)] for device in range(self.devices)]
        responses = np.tile([1.0, 0.0], (self.devices, TEXTS_A_DEVICE))[..., None]
        return GlmGradients(Glm(features=self._features.shape[1], link=LOGISTIC), examples, responses)

    @cached_property
    def _features(self) -> csr_array:
        """Of each text with the item that was chosen, and with another one."""
        stream = SeededRandomness(self.seed).stream("examples")
        words, topics = self.world.texts(self.devices * TEXTS_A_DEVICE, stream)
        others = (stream.bits(len(words)) % np.uint64(self.world.items)).astype(np.int64)
        items = np.stack([self.world.choices(topics, stream), others], axis=1)
        return self.world.features(np.repeat(words, 2, axis=0), items.ravel())

    @cached_property
    def _test(self) -> tuple[Integers, Integers, Integers]:
        """Texts, their topics, and what their writers chose."""
        stream = SeededRandomness(self.seed).stream("test")
        words, topics = self.world.texts(TEST_TEXTS, stream)
        return words, topics, self.world.choices(topics, stream)


def plot_ranking(folder: Path, series: Sequence[Entry]) -> list[str]:
    """How often the chosen item is among so many, a curve a model; gives the names of the files."""
    paths = files(folder, "ddml-ranking")
    with axes(*paths) as (panel,):
        for one in series:
            panel.plot(one["within"], one["share"], label=one["label"])
        logarithmic(panel, "x")
        dress(panel, "items ranked highest", "texts whose item is among them", title=SIMULATED, loc="upper left")
    return [str(path) for path in paths]


def _places(scores: Floats, chosen: Integers) -> Floats:
    """How many items are ranked above the chosen one; those with the same score count half."""
    own = scores[np.arange(len(scores)), chosen][:, None]
    places: Floats = (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2
    return places


def _cpu_seconds(task: Callable[[], object], *, times: int) -> float:
    task()
    started = time.process_time()
    for _ in range(times):
        task()
    return max(time.process_time() - started, 1e-9) / times


def _findings(report: Entry) -> list[Finding]:
    keys_of = {row["instances"]: row for row in report["hot_keys"] if row["updates_per_second"] == 200}
    three, twenty = keys_of[3], keys_of[20]
    load, (private, quiet, alone, best, none) = report["load"], report["table"]
    return [
        Finding(
            statement=f"{PAPER['updates_per_second']} updates a second at peak times",
            measured=f"one core of a server takes {load['updates_per_second']:.0f} a second of {report['weights']:,} "
            "weights each, the network left out",
            agrees=load["updates_per_second"] > PAPER["updates_per_second"],
        ),
        Finding(
            statement="about 50,000 weights and 1 MB",
            measured=f"{report['weights']:,} weights are {load['draw_bytes']:,} bytes a draw and as many a discard; "
            f"the pool takes {load['pool_bytes'] / 1e6:.0f} MB",
            agrees=load["draw_bytes"] <= PAPER["model_bytes"],
        ),
        Finding(
            statement="a model of this size can be learnt privately (no measure is given)",
            measured=f"mean place of the chosen item of {report['items']:,}: {private['mean_place']:.0f} with noise, "
            f"{quiet['mean_place']:.0f} without, {alone['mean_place']:.0f} by one model without noise, "
            f"{best['mean_place']:.0f} by the writers' own likings, {none['mean_place']:.0f} by chance",
            agrees=private["mean_place"] < none["mean_place"] / 2,
        ),
        Finding(
            statement="k = 3 makes hot keys, k = 20 does not",
            measured=f"at 200 updates a second {three['writes_per_key']:.0f} writes a second to each of 3 keys, "
            f"{twenty['writes_per_key']:.0f} to each of 20, where the busiest gets up to {twenty['busiest_key']}",
            agrees=three["writes_per_key"] > Store().writes_a_key >= twenty["writes_per_key"],
        ),
    ]
