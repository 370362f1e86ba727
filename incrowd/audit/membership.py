"""Was this client in? What people would try on a released model, in place of what theorems allow.

The federation of some settings is trained again and again, with every client in or out by a fair coin, and its
published model is asked about each client's examples. An attacker who has trained the others has seen how the model
answers for those who are in, and for those who are not, and decides of one more model by that (Carlini et al. 2022:
LiRA). Simpler attackers look at the confidence alone, or only at which labels are right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.algorithms.clients import ClientCohort
from incrowd.algorithms.fedavg import FedAvg, State
from incrowd.algorithms.metrics import outputs_of, probabilities
from incrowd.audit.bounds import SURE, allowed, odds
from incrowd.audit.finding import Finding
from incrowd.data.examples import Examples
from incrowd.errors import ConfigError
from incrowd.learning.engine import EngineTrainer
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import PrivateRun
from incrowd.runs.work import ClientWork

MODELS, FEW_MODELS = 64, 24
"""So many federations are trained; an attacker on one of them has seen all others."""

NO_PRIVACY = 1e6
"""The epsilon of the control: the same settings with hardly any noise."""

_LEAST_SPREAD = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Shadows:
    """What many models say of each client, or record: [models, clients] each, and who was `inside` when a model was
    trained.

    `confidence` is the mean logarithm of the odds that a model gives the right labels of a client's examples, `right`
    the share of them that it gets right; a record is one example.
    """

    inside: NDArray[np.bool_]
    confidence: Floats
    right: Floats


class Population(Protocol):
    """Clients or records that are in or out by a coin, and the training of a model on those who are in."""

    unit: ClassVar[str]

    @property
    def public(self) -> bool:
        """Whether their examples were declared public."""
        ...

    @property
    def examples(self) -> Examples:
        """All their examples."""
        ...

    @property
    def owners(self) -> Integers:
        """Which of them each example belongs to."""
        ...

    @property
    def delta(self) -> float:
        """The delta of the promise."""
        ...

    def trained(
        self, inside: NDArray[np.bool_], randomness: SeededRandomness, *, private: bool
    ) -> tuple[nn.Module, float]:
        """The published model of those who are inside, and the epsilon that was spent at most; without privacy 0."""
        ...


def membership(population: Population, *, models: int, seed: int, control: bool = True) -> list[Finding]:
    """Try what people would try, on models of these settings, and as a `control` on those of the same without privacy.

    Guarantee: no ledger is opened. What is found is no bound, and speaks for nobody's safety: it shows what an attack
    of this kind gains, beside what the promise allows any.

    Edge cases: data that are not public, or labels that are not classes, are a `ConfigError`. Where silos promise
    different epsilons, the largest is held against what was found.
    """
    unit, examples = population.unit, population.examples
    if not population.public:
        remedy = f"the attacks train on {unit}s and pay for nothing: only public ones may be looked at"
        raise ConfigError(field="data.public", value=False, remedy=remedy)
    if examples.classes is None or examples.labels.ndim != 1:
        remedy = "these attacks ask a model for the label of each example: give data whose labels are classes"
        raise ConfigError(field="membership", value="labels that are numbers", remedy=remedy)
    seen, claimed = shadows(population, models=models, seed=seed)
    found = attacked(seen, unit=unit, claimed=claimed, delta=population.delta)
    if not control:
        return found
    plain, _ = shadows(population, models=models, seed=seed + models, private=False)
    return [*found, *attacked(plain, unit=unit, claimed=None, delta=population.delta)]


def shadows(population: Population, *, models: int, seed: int, private: bool = True) -> tuple[Shadows, float]:
    """So many models, each of another half, asked about everybody; and what they cost at most."""
    examples, owners = population.examples, population.owners
    counts = np.bincount(owners)
    inside = np.zeros((models, len(counts)), np.bool_)
    confidence, right = np.zeros(inside.shape), np.zeros(inside.shape)
    spent = 0.0
    for number in range(models):
        randomness = SeededRandomness(seed=seed + number)
        inside[number] = randomness.stream("inside").bits(len(counts)) % np.uint64(2) == 1
        model, epsilon = population.trained(inside[number], randomness, private=private)
        odd, correct = said(outputs_of(model, examples), examples.labels.astype(np.int64))
        confidence[number], right[number] = (np.bincount(owners, each) / counts for each in (odd, correct))
        spent = max(spent, epsilon)
    return Shadows(inside=inside, confidence=confidence, right=right), spent


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientPopulation:
    """The clients of a federation."""

    work: ClientWork
    unit: ClassVar[str] = "client"

    @property
    def public(self) -> bool:
        """See `Population`."""
        return self.work.data.public

    @property
    def delta(self) -> float:
        """See `Population`."""
        return self.work.plan.budget.delta

    @cached_property
    def examples(self) -> Examples:
        """See `Population`."""
        data = self.work.data
        return data.examples.some(np.concatenate([data.client(client) for client in range(data.present)]))

    @cached_property
    def owners(self) -> Integers:
        """See `Population`."""
        data = self.work.data
        return np.repeat(np.arange(data.present), [len(data.client(client)) for client in range(data.present)])

    def trained(
        self, inside: NDArray[np.bool_], randomness: SeededRandomness, *, private: bool
    ) -> tuple[nn.Module, float]:
        """See `Population`; the clients who are out do not answer."""
        work, plan = self.work, self.work.plan
        if not private and isinstance(plan, Plan):
            plan = plan.config.calibrate(Budget(epsilon=NO_PRIVACY, delta=self.delta))
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        size, places = work.engine.size, work.data.places
        run = PrivateRun(plan, ledger=ledger, randomness=randomness, size=size, label="audit", places=places)
        algorithm = FedAvg(ClientCohort(engine=work.engine, private=run), server=work.config.server)
        state: State = algorithm.init()

        def present(cohort: Integers) -> Integers:
            there = work.engine.present(cohort)
            return there[inside[there]]

        for number in range(plan.rounds):
            opened = run.round(number, carry=state.carry)
            opened.ask(EngineTrainer(work.engine, state.start, randomness=randomness), present=present)
            answers = algorithm.cohort.released(opened)
            state = state.after(answers, server=work.config.server, rounds=plan.rounds)
        return work.model.with_weights(state.published), plan.price.epsilon


def said(outputs: NDArray[np.floating], labels: Integers) -> tuple[Floats, Floats]:
    """Of each example the logarithm of the odds of its label, and whether it is the most probable."""
    likely = probabilities(outputs.astype(np.float64))
    own = np.clip(likely[np.arange(len(labels)), labels], 1e-12, 1 - 1e-12)
    return np.log(own) - np.log1p(-own), (likely.argmax(axis=1) == labels).astype(np.float64)


def attacked(seen: Shadows, *, unit: str, claimed: float | None, delta: float) -> list[Finding]:
    """What each attack gains, on models of clients or of records; without a claim they are those of the control."""
    attacks: dict[str, Callable[[Shadows], Floats]] = {
        f"the odds of confidence, by what other models say of this {unit}": _likelihood_ratio,
        "confidence alone": lambda shadows: shadows.confidence,
        f"labels alone, beside what other models get right of this {unit}": _labels,
    }
    where = "" if claimed is not None else ", without privacy"
    return [
        _finding(f"was this {unit} in? By {name}{where}", attack(seen), seen, unit=unit, claimed=claimed, delta=delta)
        for name, attack in attacks.items()
    ]


def _finding(attack: str, scores: Floats, seen: Shadows, *, unit: str, claimed: float | None, delta: float) -> Finding:
    ins, outs = scores[seen.inside], scores[~seen.inside]
    found = odds(ins, outs, confidence=SURE)
    return Finding(
        attack=attack,
        unit=unit,
        claimed=claimed,
        delta=delta,
        auc=found.auc,
        true_positives=found.true_positives,
        allowed=None if claimed is None else allowed(found.false_positives_at_most, epsilon=claimed, delta=delta),
        trials=scores.size,
        note=f"{len(scores)} models; decisions about one model are not independent, so there is no bound on epsilon",
    )


def _likelihood_ratio(seen: Shadows) -> Floats:
    """For each model and client, by all other models: how much more probable the confidence is of one that is in."""
    scores = np.zeros_like(seen.confidence)
    for model in range(len(scores)):
        others = np.arange(len(scores)) != model
        (mean_in, spread_in), (mean_out, spread_out) = (
            _normal(seen.confidence[others], who[others]) for who in (seen.inside, ~seen.inside)
        )
        at = seen.confidence[model]
        scores[model] = ((at - mean_out) / spread_out) ** 2 / 2 + np.log(spread_out)
        scores[model] -= ((at - mean_in) / spread_in) ** 2 / 2 + np.log(spread_in)
    return scores


def _normal(values: Floats, who: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Mean and spread of each client's values in the models that count; the spread is that of all clients together."""
    counts = np.maximum(who.sum(axis=0), 1)
    mean = (values * who).sum(axis=0) / counts
    pooled = float((((values - mean) ** 2) * who).sum() / max(1, who.sum() - len(counts)))
    return mean, np.full(len(mean), max(np.sqrt(pooled), _LEAST_SPREAD))


def _labels(seen: Shadows) -> Floats:
    """How many more labels a model gets right than models do on average, which is all that its answers tell."""
    rest: Floats = (seen.right.sum(axis=0) - seen.right) / max(1, len(seen.right) - 1)
    return np.subtract(seen.right, rest)
