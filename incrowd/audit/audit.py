"""The audit of a federation of whole clients: attacks on simulations of its settings, and looks inside."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from incrowd import _validate
from incrowd._random import Floats
from incrowd.audit.beyond import every_client_alike, noise_in_earnest
from incrowd.audit.charged import bit_checks, charged_checks, order_of_charge, party_checks
from incrowd.audit.checks import noise_checks, price_checks, sampling_checks
from incrowd.audit.contributions import contribution_checks, order_checks
from incrowd.audit.finding import Audited, Check, Finding, scored
from incrowd.audit.pipeline import pipeline_checks
from incrowd.audit.plays import CanaryGame, Play
from incrowd.audit.shares import share_checks
from incrowd.errors import IncrowdError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.work import ClientWork

_TRIALS, _QUICK = 20_000, 4_000
_MOST_ROUNDS = 12_000
_NOISE = 4_000_000
"""So many numbers of noise are kept to be looked at."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much an audit computes: so many canaries in all, or so many `repeats` of the federation; about 20,000
    canaries unless one of them is given, and a fifth of that where it is to be `quick`.
    """

    canaries: int | None = None
    repeats: int | None = None
    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        _validate.natural(seed=self.seed)
        for name in ("canaries", "repeats"):
            if getattr(self, name) is not None:
                _validate.count(**{name: getattr(self, name)})

    @property
    def trials(self) -> int:
        """How many canaries are wanted in all."""
        return self.canaries or (_QUICK if self.quick else _TRIALS)

    def plays(self, game: CanaryGame) -> int:
        """How often the federation is played. Edge cases: fewer than two would show no noise that comes again: two."""
        if self.repeats is not None:
            return max(2, self.repeats)
        affordable = self.trials if self.canaries else _MOST_ROUNDS // game.plan.rounds
        return max(2, min(math.ceil(self.trials / game.canaries), affordable))


def audit_plan(plan: Plan, budget: Budget, *, effort: Effort) -> Audited:
    """Attack a plan that was to keep to this budget, on federations that are made of canaries.

    Guarantee: nobody's data are looked at and no ledger is opened. A right plan fails once in some 30,000 audits: each
    of about thirty looks fails once in a million.

    Edge cases: what a pipeline refuses in a look inside speaks against it. The leakage of the paper's median clip is in
    no figure, as in its statement.
    """
    games = [CanaryGame(plan=plan, colluding=True)] if plan.noise_by == "parties" else []
    games.append(CanaryGame(plan=plan))
    game = games[0]
    findings: list[Finding] = []
    checks: list[Check] = []
    notes = [f"seen: {plan.rounds} rounds of {game.canaries} canaries at a time"]
    if isinstance(game.clip, MedianClip):
        notes.append("the median is not private: what it tells is in no figure here")
    for game in games:
        try:
            plays = [game.play(effort.seed * 1_000_003 + number) for number in range(effort.plays(game))]
        except IncrowdError as error:
            checks.append(_refusal("canaries", error))
            continue
        findings.append(strongest(game, plays))
        kept = plays[: max(2, _NOISE // max(1, plays[0].noise.size))]
        checks += noise_checks(game, kept) + sampling_checks(game, plays)
    looks: dict[str, Callable[[], Sequence[Check]]] = {
        "price": partial(price_checks, plan),
        "charges": partial(charged_checks, plan, budget),
        "contributions": partial(contribution_checks, plan),
        "order": partial(order_checks, plan),
        "order of charge": lambda: [order_of_charge(plan)],
        "noise in earnest": lambda: [noise_in_earnest(plan)],
        "clients": partial(every_client_alike, plan, seed=effort.seed),
        "parties": partial(party_checks, plan, seed=effort.seed),
        "bits": partial(bit_checks, plan, seed=effort.seed),
        "shares": partial(share_checks, plan, seed=effort.seed),
    }
    for name, look in looks.items():
        try:
            checks += look()
        except IncrowdError as error:
            checks.append(_refusal(name, error))
    return Audited(
        claimed=plan.price.epsilon,
        delta=plan.budget.delta,
        findings=tuple(findings),
        checks=tuple(checks),
        settings=_described(plan, effort),
        notes=tuple(notes),
    )


def audit_work(work: ClientWork, *, effort: Effort) -> Audited:
    """Attack a federation as its settings have it: its plan by canaries, and where its data are public, a few rounds of
    its own training from inside.

    Guarantee: private examples are not trained on; no ledger is opened.
    """
    budget = work.config.privacy.budget
    found = audit_plan(work.plan, budget, effort=effort)
    notes = list(found.notes)
    checks = list(found.checks)
    if work.data.public:
        try:
            checks += pipeline_checks(work, seed=effort.seed)
        except IncrowdError as error:
            checks.append(_refusal("federation", error))
    else:
        notes.append("the data are private: nothing was trained on them, and the training was not looked at")
    return Audited(
        claimed=found.claimed,
        delta=found.delta,
        findings=found.findings,
        checks=tuple(checks),
        settings={**found.settings, "model_size": work.model.size},
        notes=tuple(notes),
    )


def strongest(game: CanaryGame, plays: Sequence[Play]) -> Finding:
    """The attack that the promise is about: one canary as bad as can be, all else known, every release seen."""
    inside, outside = _split(plays)
    note = f"{len(plays)} federations; canaries at right angles are trials by themselves"
    attack = "one canary, told from its neighbour by all releases"
    if game.colluding:
        attack += " and the shares of all colluders"
    return scored(game.plan, inside, outside, attack=attack, note=note)


def _split(plays: Sequence[Play]) -> tuple[Floats, Floats]:
    scores, coins = (np.concatenate([getattr(play, name) for play in plays]) for name in ("scores", "inside"))
    return scores[coins], scores[~coins]


def _refusal(name: str, error: IncrowdError) -> Check:
    return Check(name=name, measured=f"refused: {error}", stated="works", holds=False)


def _described(plan: Plan, effort: Effort) -> dict[str, object]:
    return {
        "unit": "client",
        "clients": plan.round(0).sampler.clients,
        "rounds": plan.rounds,
        "sampler": type(plan.round(0).sampler).__name__,
        "clip": type(plan.config.clip).__name__,
        "noise": plan.noise_by if plan.config.groups is None else "correlated",
        "noise_multiplier": plan.noise_multiplier,
        "seed": effort.seed,
    }
