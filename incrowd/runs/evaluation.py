"""The quality of a finished run's model on the clients' examples: noised, and paid for like a round."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from incrowd import _files
from incrowd._random import Floats, Randomness, SeededRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.learning.mean_query import VectorTrainer
from incrowd.learning.scoring import Scorer, Scoring
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import runs_to_json
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, constant
from incrowd.privacy.release import PrivateRun, Release, Trainer
from incrowd.privacy.statement import SHARED, Statement, stated
from incrowd.runs.folder import EVALUATION, LEDGER, LOCK, MODEL, STATEMENT, Summary, summary_in, write_results
from incrowd.runs.work import ClientWork, Work

__all__ = ["Evaluation", "EvaluationConfig"]

MEASURES = (
    "the mean over all {clients} clients, of whom each counts the same, however many examples it has; one that does "
    "not answer counts as one half. They are the clients that training asks, and a model looks better on examples that "
    "it was trained on than on others"
)

_COUNTED = "; evaluations: "

_SAMPLING: dict[Relation, Sampling] = {
    Relation.ADD_OR_REMOVE_ONE: Poisson,
    Relation.REPLACE_ONE: FixedSize,
    Relation.REPLACE_SPECIAL: Everyone,
}


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The measures on the clients' examples, and their price.

    The accuracy is measured where labels are classes or yes and no. With `loss_bound` the mean loss is, of which no
    example counts for more than that, a public number; with `by_class` figures class by class. Each makes the noise of
    all of them larger. Without `delta` it is the ledger's.
    """

    epsilon: float
    delta: float | None = None
    loss_bound: float | None = None
    by_class: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Weights to be scored, and the one round that pays for it.

    Guarantee: it is reserved in the ledger of the run's data before any example is looked at, and charged before noise
    is drawn: repeated, it is paid again. One that was reserved and not charged, because the process ended, goes on when
    the same evaluation is repeated, and is released by another one. All figures come from one `PrivateRun`, so the
    figures are as private as its plan.
    """

    folder: Path
    work: ClientWork
    scoring: Scoring
    weights: Floats = field(repr=False)
    private: PrivateRun
    label: str

    @classmethod
    @contextmanager
    def begin(cls, folder: Path, work: Work, wanted: EvaluationConfig) -> Iterator["Evaluation"]:
        """An evaluation of the released model of the run in this folder, for as long as the `with` block lasts."""
        if not isinstance(work, ClientWork):
            remedy = (
                "silos protect records, and have no evaluation: measure on a public test set, or let each silo score "
                "the released model on its own records, for itself"
            )
            raise ConfigError(field="privacy.unit", value="record", remedy=remedy)
        summary_in(folder)
        scoring = scoring_of(work, wanted)
        weights: Floats = work.model.loaded(load_file(folder / MODEL)).weights.double().numpy()
        lock = _files.alone(folder / LOCK, what="trains in this folder")
        with lock, work.payer.open(folder / LEDGER) as ledger:
            delta = ledger.budget.delta if wanted.delta is None else wanted.delta
            plan = plan_of(work, scoring, Budget(epsilon=wanted.epsilon, delta=delta))
            label, number = _reserved(ledger, plan, prefix=f"{work.payer.label}: evaluation ")
            private = PrivateRun(
                plan, ledger=ledger, randomness=_apart(work.randomness, number), size=scoring.size, label=label
            )
            private.name_third_party(work.third_party)
            yield cls(folder=folder, work=work, scoring=scoring, weights=weights, private=private, label=label)

    @property
    def here(self) -> VectorTrainer:
        """The clients of this machine, who answer for themselves."""
        work = self.work
        scorer = Scorer(model=work.model, data=work.engine.data, scoring=self.scoring, loss=work.loss)
        return scorer.trainer(self.weights)

    def release(self, trainer: Trainer) -> Summary:
        """Ask the clients, release the figures, and write them next to the run's other results, whose statement is
        brought up to date.
        """
        opened = self.private.round(0)
        opened.ask(trainer, present=self.work.engine.present)
        release = opened.release()
        folder, summary = self.folder, summary_in(self.folder)
        claims = self._claims()
        found: Summary = json.loads(json.dumps(self._summary(release, claims)))  # as it is read again
        summary["epsilon"] = claims.epsilon
        write_results(folder, claims, summary)  # before the figures that it describes
        all_of_them = {"evaluations": [*evaluations_in(folder), found]}
        _files.write(folder / EVALUATION, json.dumps(all_of_them, indent=1, allow_nan=False))
        return found

    def _summary(self, release: Release, claims: Statement) -> Summary:
        plan, clients = self.private.plan, self.work.data.clients
        std = release.noise_std / release.cohort
        return {
            **self.scoring.figures(release.mean, std=std),
            "measured": MEASURES.format(clients=clients),
            "clients": clients,
            "epsilon": plan.price.epsilon,
            "delta": plan.budget.delta,
            "noise_multiplier": plan.noise_multiplier,
            "noise_by": plan.noise_by,
            "simulated": self.private.randomness.simulated,
            "epsilon_of_all": claims.epsilon,
            "statement": claims.to_json(),
        }

    def _claims(self) -> Statement:
        """The statement of the run and its evaluations together."""
        old = Statement.from_json(json.loads((self.folder / STATEMENT).read_text()))
        prefix, rest = self.label.rpartition(" ")[0], SHARED.partition("{")[0]
        ledger = self.private.ledger
        labels = [str(entry.content().get("reservation")) for entry in ledger.entries() if entry.kind == "charge"]
        evaluations = sum(label.startswith(prefix) for label in labels)
        sampler = old.sampler.partition(_COUNTED)[0]
        claims = stated(
            ledger,
            unit=old.unit,
            trust=old.trust,
            sampler=f"{sampler}{_COUNTED}{evaluations}, of all {self.work.data.clients} clients",
            own=evaluations + labels.count(self.work.payer.label),
            caveats=tuple(caveat for caveat in old.caveats if not caveat.startswith(rest)),
            assumed=old.assumed,
        )
        return replace(claims, assumed=tuple(dict.fromkeys(claims.assumed)))  # a run's and an evaluation's are the same


def scoring_of(work: ClientWork, wanted: EvaluationConfig) -> Scoring:
    """The measures of a run's clients."""
    examples = work.data.examples
    answers = examples.classes is not None or work.loss.name == "logistic"
    if not answers and wanted.loss_bound is None:
        remedy = "the labels are numbers: say how large a loss may count, a public number, and its mean is measured"
        raise ConfigError(field="loss_bound", value=None, remedy=remedy)
    if wanted.by_class and (examples.classes is None or examples.labels.ndim > 1):
        remedy = "the labels are several, or numbers: leave the figures class by class out"
        raise ConfigError(field="by_class", value=True, remedy=remedy)
    return Scoring(
        accuracy=answers, loss_bound=wanted.loss_bound, classes=examples.classes if wanted.by_class else None
    )


def plan_of(work: ClientWork, scoring: Scoring, budget: Budget) -> Plan:
    """The one round that queries the scores of all clients, with noise by whoever adds it in training."""
    plan, clients = work.plan, work.data.clients
    config = PlanConfig(
        members=clients,
        schedule=constant(rounds=1, cohort=float(clients)),
        sampling=_SAMPLING[plan.relation] if plan.noise_by == "server" else Everyone,
        noise_by=plan.noise_by,
        colluders=plan.config.colluders,
        clip=FixedClip(clip_norm=scoring.bound),
    )
    return config.calibrate(budget)


def _reserved(ledger: Ledger, plan: Plan, *, prefix: str) -> tuple[str, int]:
    """The label under which the plan is reserved, and its number: a new one, or that of the same evaluation if it was
    reserved and never charged.
    """
    number = 1
    for standing in ledger.reservations():
        if not standing.label.startswith(prefix):
            continue
        if standing.charged == 0 and not standing.released:
            if runs_to_json(standing.runs) == runs_to_json(plan.runs):
                return standing.label, number
            ledger.release_reservation(standing.label)
        number += 1
    try:
        ledger.reserve(plan.runs, label=f"{prefix}{number}")
    except BudgetExceeded as error:
        raise BudgetExceeded(
            f"{error}. An evaluation is paid from the ledger that training is paid from: begin that with room for it "
            "(privacy.room, or incrowd ledger new)"
        ) from error
    return f"{prefix}{number}", number


def _apart(randomness: Randomness, number: int) -> Randomness:
    """Independent noise: a separate seed in simulations."""
    if not isinstance(randomness, SeededRandomness):
        return randomness
    digest = hashlib.sha256(f"{randomness.seed}: evaluation {number}".encode()).digest()
    return SeededRandomness(seed=int.from_bytes(digest[:8]))


def evaluations_in(folder: Path) -> list[dict[str, Any]]:
    """All that was measured of a run, in order."""
    path = folder / EVALUATION
    return list(json.loads(path.read_text())["evaluations"]) if path.exists() else []
