"""Silos as in the FEDn example of DP-SGD: MNIST over a few silos, ten rounds, and a budget that holds.

The example's settings are kept (delta 1e-5, ten rounds, its perceptron). What is different: one noise is calibrated to
the budget of all rounds, records are drawn by Poisson sampling at the probability that is priced, and a round is paid
for before it begins. `papers.fedn.schedule` prices what the example does instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import checks
from harness.results import columns
from harness.seeds import Entry, Say, repeated, silent, summary
from incrowd import Budget, ConfigError, DataError, Ledger, PlanConfig, SeededRandomness, ServerOptimizer
from incrowd.algorithms import FedAvg, RecordRun, RoundReport, Silo, SiloCohort, score
from incrowd.data import Clients, Examples, Split, iid
from incrowd.learning import BatchedRecords, ClientTensors, Descent, Model, Records, linear, mlp
from incrowd.learning.features import FeatureMap, SecondOrderEnergies, compose, transform
from incrowd.types import Randomness
from papers.fedn.schedule import DELTA, ROUNDS, Published
from papers.geyer.handwriting import GlyphMetric, MomentNormalisation

TUNED = "the settings were chosen on training examples declared public; that choice is not in epsilon"


@dataclass(frozen=True, kw_only=True)
class Network:
    """How silos learn: everything but their number, their budget and their seed.

    `batch_share` is the part of a silo's records that a step expects; `descent` follows from epsilon, because with less
    noise steps can be longer.
    """

    name: str
    prior: str
    model: Callable[[int, int], Model]
    descent: Callable[[float], Descent]
    batch_share: float
    epochs: float
    clip_norm: float
    features: Callable[[tuple[int, int]], FeatureMap] | None = None
    init_scale: float = 1.0
    server: ServerOptimizer = field(default_factory=ServerOptimizer)

    def seen(self, examples: Examples, cache: Path | None) -> Examples:
        """What the model sees of examples: each one's own work, which costs no privacy."""
        if self.features is None:
            return examples
        if len(examples.shape) != 2:
            raise DataError(f"examples have the shape {examples.shape}: this network is for grey images")
        height, width = examples.shape
        return transform(self.features((height, width)), examples, cache=cache, alone=False)


def _article(inputs: int, outputs: int) -> Model:
    return mlp((inputs, 64, 32, outputs))


def _linear(inputs: int, outputs: int) -> Model:
    return linear(inputs, outputs, bias=False)


def _strokes(shape: tuple[int, int]) -> FeatureMap:
    return GlyphMetric(base=compose(MomentNormalisation(), SecondOrderEnergies()), shape=shape, dimensions=512)


NETWORKS = {
    network.name: network
    for network in (
        Network(
            name="article",
            prior="none: raw pixels, the article's perceptron 784-64-32-10",
            model=_article,
            descent=lambda epsilon: Descent(learning_rate=8.0 if epsilon >= 4 else 4.0),
            batch_share=0.1,
            epochs=4,
            clip_norm=1.0,
        ),
        Network(
            name="best",
            prior="handwriting: moments, oriented energies, a metric of random drawings; a linear model",
            model=_linear,
            descent=lambda _epsilon: Descent(learning_rate=32.0),
            batch_share=0.1,
            epochs=4,
            clip_norm=1.0,
            features=_strokes,
            init_scale=0.0,
        ),
    )
}
"""The ways to learn, by name."""


@dataclass(frozen=True, kw_only=True)
class Silos:
    """What to measure, and on which data.

    Edge cases: unknown networks, numbers of silos, epsilons or seeds that are not positive, and data
    without test examples: refused before anything is computed.
    """

    split: Split
    silos: Sequence[int] = (2, 10)
    epsilons: Sequence[float] = (8.0, 2.0)
    networks: Sequence[str] = tuple(NETWORKS)
    rounds: int = ROUNDS
    seeds: int = 1
    cache: Path | None = None
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(seeds=self.seeds, rounds=self.rounds)
        for name, several in (("silos", self.silos), ("epsilon", self.epsilons), ("network", self.networks)):
            if not several:
                raise ConfigError(field=name, value="", remedy="name at least one")
        for silos in self.silos:
            checks.count(silos=silos)
        for epsilon in self.epsilons:
            checks.positive(epsilon=epsilon)
        for name in self.networks:
            checks.known(NETWORKS, network=name)
        if self.split.test is None or self.split.train.classes is None:
            raise DataError("accuracies are asked for: give test examples, and labels that are classes")

    def runs(self) -> list[Entry]:
        """One entry for each network, number of silos and epsilon: the first seed's rounds, and all accuracies."""
        return [
            self._entry(NETWORKS[name], silos, epsilon)
            for name in self.networks
            for silos in self.silos
            for epsilon in self.epsilons
        ]

    def published(self) -> list[Entry]:
        """What the example's own schedule would spend, for each number of silos and epsilon."""
        rows = []
        for silos in self.silos:
            for epsilon in self.epsilons:
                self.say(f"the published schedule, {silos} silos, epsilon {epsilon:g}")
                records = len(self.split.train) // silos
                rows.append(
                    {"silos": silos} | Published(records=records, epsilon=epsilon, rounds=self.rounds).simulated()
                )
        return rows

    def _entry(self, network: Network, silos: int, epsilon: float) -> Entry:
        self.say(f"{network.name}, {silos} silos, epsilon {epsilon:g}")
        trained = repeated(lambda seed: self._trained(network, silos, epsilon, seed), seeds=self.seeds)
        first = trained.first
        accuracies = [run.accuracies[-1] for run in trained.runs]
        plan, statement = first.silos[0].run.plan, first.silos[0].statement()
        return {
            "silos": silos,
            "network": network.name,
            "prior": network.prior,
            "epsilon": epsilon,
            "delta": DELTA,
            "rounds": self.rounds,
            **summary(accuracies),
            "accuracies": accuracies,
            "accuracy_by_round": first.accuracies,
            "epsilon_by_round": [report.epsilon for report in first.reports],
            "epsilon_by_silo": {
                silo.name: [report.silos[place].epsilon for report in first.reports]
                for place, silo in enumerate(first.silos)
            },
            "noise_multiplier": plan.noise_multiplier,
            "stopped": sorted({name for report in first.reports for name in report.stopped}),
            "seeds": self.seeds,
            "batch": plan.training().expected_batch,
            "steps": plan.config.steps,
            "weights": first.size,
            "seconds": trained.seconds,
            "statement": replace(statement, caveats=(*statement.caveats, TUNED)).to_json(),
        }

    def _trained(self, network: Network, silos: int, epsilon: float, seed: int) -> "_Trained":
        randomness = SeededRandomness(seed=seed)
        train = network.seen(self.split.train, self.cache)
        test = None if self.split.test is None else network.seen(self.split.test, self.cache)
        data = Clients(examples=train, partition=iid(train.labels, clients=silos, randomness=randomness), test=test)
        model = network.model(math.prod(train.shape), train.classes or 1)
        parties = self._parties(network, data, model, Budget(epsilon=epsilon, delta=DELTA), randomness)
        asks = [silo.answer for silo in parties]
        cohort = SiloCohort(asks=asks, model=model, rounds=self.rounds, randomness=randomness)
        federation = FedAvg(cohort, server=network.server, init_scale=network.init_scale)
        return self._followed(federation, parties, test)

    def _followed(self, federation: FedAvg[SiloCohort], parties: Sequence[Silo], test: Examples | None) -> "_Trained":
        state, reports, accuracies, model = federation.init(), [], [], federation.cohort.model
        for _ in range(self.rounds):
            state, report = federation.apply(state)
            reports.append(report)
            accuracies.append(score(model, state.published, test).accuracy or 0.0 if test else 0.0)
            self.say(f"  round {state.round}: epsilon {report.epsilon:.3f}, accuracy {accuracies[-1]:.4f}")
        return _Trained(silos=parties, reports=reports, accuracies=accuracies, size=model.size)

    def _parties(
        self, network: Network, data: Clients, model: Model, budget: Budget, randomness: Randomness
    ) -> list[Silo]:
        tensors, parties = ClientTensors.of(data), []
        for place in range(data.clients):
            records = Records.of(tensors, place)
            plan = PlanConfig.of_records(
                records=len(records),
                rounds=self.rounds,
                clip_norm=network.clip_norm,
                batch_size=network.batch_share * len(records),
                epochs=network.epochs,
            ).calibrate(budget)
            ledger = Ledger.in_memory(budget=budget, relation=plan.relation)
            engine = BatchedRecords(model, records, network.descent(budget.epsilon))
            run = RecordRun(plan, ledger=ledger, randomness=randomness, place=place)
            parties.append(Silo(f"silo {place + 1}", run, engine=engine, physical_batch=1024))
        return parties


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trained:
    """One federation that is over."""

    silos: Sequence[Silo]
    reports: Sequence[RoundReport]
    accuracies: Sequence[float]
    size: int


def shown(entries: Sequence[Entry]) -> list[Entry]:
    """The columns that fit on a screen."""
    names = ("network", "silos", "epsilon", "accuracy", "rounds", "steps", "batch", "weights", "seconds", "spent")
    return columns([entry | {"spent": entry["epsilon_by_round"][-1]} for entry in entries], names)


def shown_published(entries: Sequence[Entry]) -> list[Entry]:
    """The published schedule for people: what it spends, and when it breaks its budget."""
    return [
        {
            "silos": entry["silos"],
            "epsilon": entry["epsilon"],
            "after half the rounds": entry["epsilon_by_round"][(len(entry["epsilon_by_round"]) - 1) // 2],
            "after the last": entry["epsilon_by_round"][-1],
            "first round over budget": entry["first_round_over_budget"],
        }
        for entry in entries
    ]
