"""Was this client in? What people would try on a released model, in place of what theorems allow.

The federation of some settings is trained again and again, with every client in or out by a fair coin, and its
published model is asked about each client's examples. An attacker who has trained the others has seen how the model
answers for those who are in, and for those who are not, and decides of one more model by that (Carlini et al. 2022:
LiRA). Simpler attackers look at the confidence alone, or only at which labels are right.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.audit.bounds import SURE, allowed, odds
from incrowd.audit.finding import Finding
from incrowd.data.examples import Examples
from incrowd.errors import ConfigError
from incrowd.federated.evaluate import outputs_of
from incrowd.federated.fedavg import FedAvg, State
from incrowd.federated.metrics import probabilities
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.promise import Promise
from incrowd.privacy.release import PrivateRun
from incrowd.runs.client_work import ClientWork

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


def membership(work: ClientWork, *, models: int, seed: int) -> list[Finding]:
    """Try what people would try, on models of these settings, and on those of the same without privacy as a control.

    Guarantee: no ledger is opened. What is found is no bound, and speaks for nobody's safety: it shows what an attack
    of this kind gains, beside what the promise allows any.

    Edge cases: data that are not public, or labels that are not classes, are a `ConfigError`.
    """
    if not work.data.public:
        remedy = "the attacks train on the clients' examples and pay for nothing: only public ones may be looked at"
        raise ConfigError(field="data.public", value=False, remedy=remedy)
    if work.data.examples.classes is None or work.data.examples.labels.ndim != 1:
        remedy = "these attacks ask a model for the label of each example: give data whose labels are classes"
        raise ConfigError(field="membership", value=work.data.describe()["data"], remedy=remedy)
    plan = work.plan
    delta, seen = plan.budget.delta, shadows(work, plan, models=models, seed=seed)
    found = attacked(seen, unit="client", claimed=plan.price.epsilon, delta=delta)
    control = without_privacy(plan)
    if control is None:
        return found
    plain = shadows(work, control, models=models, seed=seed + models)
    return [*found, *attacked(plain, unit="client", claimed=None, delta=delta)]


def without_privacy(plan: Promise) -> Plan | None:
    """The same plan with hardly any noise; None of correlated noise, which has no such plan."""
    if not isinstance(plan, Plan):
        return None
    return plan.config.calibrate(Budget(epsilon=NO_PRIVACY, delta=plan.budget.delta))


def shadows(work: ClientWork, plan: Promise, *, models: int, seed: int) -> Shadows:
    """Train so many models of these settings, each with another half of the clients, and ask them about everybody."""
    clients = work.data.present
    inside = np.zeros((models, clients), np.bool_)
    confidence, right = np.zeros((models, clients)), np.zeros((models, clients))
    examples, owners = _everybody(work)
    for number in range(models):
        randomness = SeededRandomness(seed=seed + number)
        inside[number] = randomness.stream("inside").bits(clients) % np.uint64(2) == 1
        weights = _trained(work, plan, inside[number], randomness)
        outputs = outputs_of(work.model.with_weights(weights), examples)
        odd, correct = said(outputs, examples.labels.astype(np.int64))
        counts = np.bincount(owners, minlength=clients)
        confidence[number] = np.bincount(owners, odd, minlength=clients) / counts
        right[number] = np.bincount(owners, correct, minlength=clients) / counts
    return Shadows(inside=inside, confidence=confidence, right=right)


def _trained(work: ClientWork, plan: Promise, inside: NDArray[np.bool_], randomness: SeededRandomness) -> Floats:
    """The published weights of a federation of those who are inside; the others do not answer."""
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    size, places = work.model.size, work.data.places
    private = PrivateRun(plan, ledger=ledger, randomness=randomness, size=size, label="audit", places=places)
    algorithm = FedAvg(engine=work.engine, private=private, server=work.config.server)
    state: State = algorithm.init()

    def present(cohort: Integers) -> Integers:
        there = work.engine.present(cohort)
        return there[inside[there]]

    for number in range(plan.rounds):
        opened = private.round(number, carry=state.carry)
        opened.ask(EngineTrainer(work.engine, state.weights, randomness=randomness), present=present)
        release = opened.release()
        state = state.after(release, server=work.config.server, rounds=plan.rounds, carry=opened.after)
    return state.published


def _everybody(work: ClientWork) -> tuple[Examples, Integers]:
    """All clients' examples, and whose each is."""
    data = work.data
    rows = [data.client(client) for client in range(data.present)]
    owners = np.repeat(np.arange(data.present), [len(row) for row in rows])
    return data.examples.some(np.concatenate(rows)), owners


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
