"""Phishing URLs, as in Pihur et al. (2018), section VI-A: logistic regression of 387 weights on what a URL looks like.

The paper's data are not public. Here devices hold ten URLs each, and no host is among both the URLs that they learn
from and those that measure. In each pass every device comes once, in a new random order.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from harness import checks
from harness.arrays import Floats, Integers, Matrix
from harness.pictures import axes, dress, files
from harness.results import Finding
from harness.seeds import Entry, Say, means, repeated, silent, spread
from incrowd import DataError, SeededRandomness
from incrowd.drawdiscard import (
    LOGISTIC,
    Glm,
    GlmGradients,
    Pool,
    Updates,
    seeded_noise,
    simulate,
    split_among_devices,
    with_intercept,
)
from incrowd.privacy.mechanism import Mechanism
from papers.ddml.scores import BinaryScores, precision_elsewhere, share_behind
from papers.ddml.study import AVERAGED, STRATEGIES, Case
from papers.ddml.url_features import FEATURES, url_features
from papers.ddml.urls import Urls, split_by_host

PAPER = BinaryScores(
    roc_auc=0.9702, pr_auc=0.7851, accuracy=0.9263, precision=0.1577, recall=0.8922, f1=0.2681
)  # of another set, which is not public
PAPER_SHARE = share_behind(accuracy=PAPER.accuracy, precision=PAPER.precision, recall=PAPER.recall)
"""How much phishing there must have been in the paper's data: 1.5 %."""

HELD_OUT = 0.2
SPLIT, TUNING_SPLIT = 0, 1
PER_DEVICE = 10
LOOKS = 16
TAIL_LOOKS = 100

AS_PAPER = Case(label="paper", instances=20, epsilon=math.log(32))
BEST = replace(AS_PAPER, label="best", learning_rate=0.4, clip=0.03, decay=1.0, tail=0.2)
"""Tuned on held-out training URLs (`Phishing.of` with `tuning`): same k, epsilon and number of updates."""
MERGED = replace(BEST, strategy=f"draw and discard{AVERAGED}", learning_rate=3.0)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A case, how many URLs a device averages its gradient over, and for Gaussian noise on the whole model a delta."""

    case: Case
    per_device: int = PER_DEVICE
    delta: float | None = None

    def mechanism(self, size: int) -> Mechanism:
        """What hides a device; with a delta the L2 norm of the gradient is bounded, and all of it private."""
        if self.delta is None:
            return self.case.mechanism(size)
        epsilon = self.case.epsilon or 0.0
        return Mechanism(
            size=size, clip=self.case.clip, epsilon=epsilon, delta=self.delta, noise="gaussian", bound="norm"
        )


VARIANTS = (
    Variant(case=AS_PAPER),
    Variant(case=BEST),
    Variant(case=replace(BEST, label="best, learning rate of the paper", learning_rate=AS_PAPER.learning_rate)),
    Variant(case=replace(BEST, label="best, clip of the paper", clip=AS_PAPER.clip)),
    Variant(case=replace(BEST, label="best, constant learning rate", decay=0.0)),
    Variant(case=replace(BEST, label="best, last state instead of the tail", tail=0.0)),
    Variant(case=replace(BEST, label="best, one URL instead of ten"), per_device=1),
    Variant(case=replace(MERGED, label="best, averaged with what it replaces")),
    Variant(
        case=replace(MERGED, label="the whole model private, averaged", learning_rate=0.2, clip=0.06, whole=True),
        delta=1e-6,
    ),
)
"""The rows of the table `--best`: what each ingredient is worth."""


@dataclass(frozen=True, kw_only=True)
class Phishing:
    """URLs to learn from and to measure with, how often devices come, and how often everything is repeated."""

    train: Urls = field(repr=False)
    test: Urls = field(repr=False)
    passes: int = 50
    seeds: int = 3
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(passes=self.passes, seeds=self.seeds)
        if len(self.train) < PER_DEVICE:
            raise DataError(f"{len(self.train)} URLs to learn from do not fill a device of {PER_DEVICE}")

    @classmethod
    def of(cls, urls: Urls, *, tuning: bool = False, **settings: Any) -> "Phishing":
        """Measured with a fifth of the hosts; for `tuning`, with a fifth of those that are left, and not with these."""
        train, test = split_by_host(urls, held_out=HELD_OUT, seed=SPLIT)
        if tuning:
            train, test = split_by_host(train, held_out=HELD_OUT, seed=TUNING_SPLIT)
        return cls(train=train, test=test, **settings)

    @property
    def updates(self) -> int:
        """How many updates there are in all passes."""
        return self.passes * (len(self.train) // PER_DEVICE)

    @cached_property
    def model(self) -> Glm:
        """Logistic regression."""
        return Glm(features=len(FEATURES), link=LOGISTIC)

    def report(self, *, best: bool) -> Entry:
        """The six measures, those of the paper and of a fit without privacy beside them, and what agrees."""
        variants = VARIANTS if best else VARIANTS[:1]
        table = [self.measure(variant) for variant in variants]
        chosen = table[1] if best else table[0]
        quiet = self.measure(Variant(case=replace(VARIANTS[best].case, label="without noise", epsilon=None)))
        alone = self.not_private()
        return {
            **{name: chosen[name] for name in PAPER.to_json()},
            "setting": chosen["label"],
            "paper": PAPER.to_json(),
            "not_private": alone.to_json(),
            "without_noise": quiet,
            "table": table,
            "weights": self.model.size,
            "urls": {"train": len(self.train), "test": len(self.test)},
            "share_of_phishing": float(self.test.labels.mean()),
            "promise": self._promise(VARIANTS[best].case),
            "findings": [finding.to_json() for finding in self._findings(table[0], chosen, quiet, alone)],
        }

    def measure(self, variant: Variant) -> Entry:
        """The measures at the end, means over the seeds, and the ROC AUC over the updates."""
        case = variant.case
        several = repeated(lambda seed: self._run(variant, seed), seeds=self.seeds)
        runs = several.runs
        finals = [BinaryScores.of(self.test.labels, run[-1], threshold=0.0) for run in runs]
        scores = {name: statistics.fmean(getattr(one, name) for one in finals) for name in PAPER.to_json()}
        curves = [[BinaryScores.of(self.test.labels, look, threshold=0.0).roc_auc for look in run[:-1]] for run in runs]
        elsewhere = [
            precision_elsewhere(self.test.labels, run[-1], recall=PAPER.recall, share=PAPER_SHARE) for run in runs
        ]
        self.say(f"{case.label}: ROC AUC {scores['roc_auc']:.4f}, PR AUC {scores['pr_auc']:.4f}")
        return {
            **asdict(case),
            **scores,
            "per_device": variant.per_device,
            "delta": variant.delta,
            "roc_auc_sd": spread([one.roc_auc for one in finals]),
            "precision_elsewhere": statistics.fmean(elsewhere),
            "moments": self._moments,
            "roc_auc_over_time": means(curves),
            "updates": self.updates,
            "seeds": self.seeds,
            "seconds": several.seconds,
        }

    def not_private(self) -> BinaryScores:
        """Logistic regression fitted to all training URLs at once, until nothing changes."""
        features, labels = self._train
        responses = labels[:, None].astype(np.float32)
        model = Glm(features=self.model.size, link=LOGISTIC, intercept=False)  # the ones are among the features

        def loss(weights: Floats) -> tuple[float, Floats]:
            given = weights.astype(np.float32)
            return model.loss(given, features, responses), model.gradient(given, features, responses).astype(np.float64)

        minimum = minimize(loss, np.zeros(model.size), jac=True, method="L-BFGS-B", options={"maxiter": 300})
        return BinaryScores.of(self.test.labels, self._test @ minimum.x, threshold=0.0)

    def _run(self, variant: Variant, seed: int) -> list[Floats]:
        """The outputs for the test URLs: at each moment, and at last of what would be released."""
        case, randomness = variant.case, SeededRandomness(seed)
        mechanism = variant.mechanism(self.model.size)
        features, labels = self._train
        rows = split_among_devices(
            len(labels), per_device=variant.per_device, order=_shuffled(len(labels), len(labels), "deal", randomness)
        )
        rates = case.rates(self.updates)
        updates = Updates(
            gradients=GlmGradients(self.model, features[rows], labels[rows][..., None]),
            mechanism=mechanism,
            devices=_shuffled(len(rows), self.updates, "order", randomness),
            rates=rates,
            noise=seeded_noise(mechanism, randomness),
        )
        pool = Pool.initial(
            np.zeros(self.model.size),
            instances=case.instances,
            update_variance=mechanism.noise_variance * float(rates[0]) ** 2,
            randomness=randomness,
        )
        tail = np.linspace((1 - case.tail) * self.updates, self.updates, TAIL_LOOKS if case.tail else 1)
        moments = [*self._moments, *(round(moment) for moment in tail)]
        coins = STRATEGIES[case.strategy](case, self.updates, randomness)
        weights = simulate(updates, coins, start=pool.instances, moments=moments).astype(np.float64)
        released = weights[len(self._moments) :].mean(axis=0)
        return [self._test @ one for one in (*weights[: len(self._moments)], released)]

    @cached_property
    def _moments(self) -> list[int]:
        return sorted({round(moment) for moment in np.geomspace(min(100, self.updates), self.updates, LOOKS)})

    @cached_property
    def _train(self) -> tuple[Matrix, Integers]:
        self.say(f"{len(self.train)} URLs to learn from, {len(self.test)} to measure with")
        return with_intercept(url_features(self.train.texts)), self.train.labels

    @cached_property
    def _test(self) -> Floats:
        inputs: Floats = with_intercept(url_features(self.test.texts)).astype(np.float64)
        return inputs

    def _promise(self, case: Case) -> str:
        return (
            f"{case.mechanism(self.model.size).describe()} That is the price of one contribution; in {self.passes} "
            f"passes each device makes {self.passes}, and pays for each."
        )

    def _findings(self, paper: Entry, chosen: Entry, quiet: Entry, alone: BinaryScores) -> list[Finding]:
        cost, elsewhere = quiet["roc_auc"] - chosen["roc_auc"], chosen["precision_elsewhere"]
        return [
            Finding(
                statement=f"ROC AUC {PAPER.roc_auc}, PR AUC {PAPER.pr_auc} (on data that are not public)",
                measured=f"with the paper's setting {paper['roc_auc']:.4f} and {paper['pr_auc']:.4f}",
                agrees=paper["roc_auc"] >= PAPER.roc_auc - 0.01 and paper["pr_auc"] >= PAPER.pr_auc - 0.05,
            ),
            Finding(
                statement=f"accuracy {PAPER.accuracy} and precision {PAPER.precision} at recall {PAPER.recall}, which "
                f"imply {PAPER_SHARE:.2%} phishing",
                measured=f"at that recall and share {_accuracy(elsewhere):.4f} and {elsewhere:.4f}; as it is, with "
                f"{self.test.labels.mean():.2%} phishing and a probability of one half, {chosen['accuracy']:.4f}, "
                f"precision {chosen['precision']:.4f}, recall {chosen['recall']:.4f}",
                agrees=elsewhere >= PAPER.precision,
            ),
            Finding(
                statement="the noise for epsilon = log 32 costs little",
                measured=f"ROC AUC {chosen['roc_auc']:.4f}, without noise {quiet['roc_auc']:.4f}; fitted without "
                f"privacy until nothing changes {alone.roc_auc:.4f}",
                agrees=cost < 0.01,
            ),
        ]


def _accuracy(precision: float) -> float:
    """At the paper's share and recall."""
    return 1 - PAPER_SHARE * (1 - PAPER.recall + PAPER.recall * (1 / precision - 1))


def plot_phishing(folder: Path, report: Entry) -> list[str]:
    """ROC AUC over the updates; gives the names of the files."""
    paths = files(folder, "ddml-phishing")
    curves: Sequence[Entry] = [*report["table"][:2], report["without_noise"]]
    with axes(*paths) as (panel,):
        for one in curves:
            label = {AS_PAPER.label: "the paper's setting"}.get(one["label"], one["label"])
            panel.plot(one["moments"], one["roc_auc_over_time"], label=label)
        panel.axhline(
            report["not_private"]["roc_auc"], color="black", linestyle="--", linewidth=1, label="not private, fitted"
        )
        panel.axhline(
            report["paper"]["roc_auc"], color="grey", linestyle=":", linewidth=1, label="the paper, on its own data"
        )
        panel.set_xscale("log")
        dress(panel, "updates", "ROC AUC, URLs of other hosts", title="SIMULATION: seeded", loc="lower right")
    return [str(path) for path in paths]


def _shuffled(count: int, size: int, purpose: str, randomness: SeededRandomness) -> Integers:
    """All in random order, then all in another, until there are so many."""
    stream = randomness.stream(purpose)
    orders = [np.argsort(stream.bits(count), kind="stable") for _ in range(-(-size // count))]
    return np.concatenate(orders)[:size]
