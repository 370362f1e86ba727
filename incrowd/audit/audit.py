"""Audit settings, a run or a specification: attacks on simulations, and checks of the mechanism."""

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from incrowd import _validate
from incrowd.audit.bounds import Audited, Check, Finding
from incrowd.audit.canaries import CanaryGame, Play
from incrowd.audit.checks import (
    bit_checks,
    every_client_alike,
    ledger_checks,
    noise_checks,
    noise_in_earnest,
    party_checks,
    sampling_checks,
)
from incrowd.audit.contributions import contribution_checks, order_checks
from incrowd.audit.devices import audit_specification
from incrowd.audit.pipeline import pipeline_checks
from incrowd.audit.records import audit_silos
from incrowd.audit.shares import share_checks
from incrowd.drawdiscard.specification import read_specification
from incrowd.errors import ConfigError, IncrowdError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.config import Config, read_back, tables
from incrowd.runs.folder import settings_in
from incrowd.runs.recipes import config_of
from incrowd.runs.run import reopened
from incrowd.runs.work import ClientWork, assemble

_TRIALS, _QUICK = 20_000, 4_000
_RECORDS, _QUICK_RECORDS = 5_000, 1_000
_MOST_ROUNDS = 12_000
_NOISE = 4_000_000
"""Noise checks look at this many numbers."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The size of an audit: a number of `canaries`, or of `repeats` of the federation.

    The default is about 20,000 canaries, and a fifth of that if `quick`.
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

    def trials(self, most: int = _TRIALS, quick: int = _QUICK) -> int:
        """The number of canaries, by default one of these two."""
        return self.canaries or (quick if self.quick else most)

    def plays(self, game: CanaryGame) -> int:
        """The number of federations: two at least, so that repeated noise shows."""
        if self.repeats is not None:
            return max(2, self.repeats)
        affordable = self.trials() if self.canaries else _MOST_ROUNDS // game.plan.rounds
        return max(2, min(math.ceil(self.trials() / game.canaries), affordable))


def audit(
    source: Path | None, *, overrides: Sequence[str] = (), data: Path | None = None, effort: Effort | None = None
) -> Audited:
    """Audit the settings in a file, a draw-and-discard specification, the run in a folder, or the demonstration.

    Guarantee: no ledger is opened or looked for: ledgers in memory pay.

    Edge cases: a run is audited as it was made; other values or another data folder are refused.
    """
    effort = Effort() if effort is None else effort
    is_run, is_specification = source is not None and source.is_dir(), _is_specification(source)
    if (is_run or is_specification) and (overrides or data is not None):
        remedy = "a specification is audited as it is: these are for settings of runs"
        if is_run:
            remedy = "a run is audited as it was made: give its settings file to try others"
        raise ConfigError(field="set", value=list(overrides) or str(data), remedy=remedy)
    if source is not None and is_specification:
        return _audit_device(source, effort=effort)
    if source is None or not is_run:
        config = config_of(tables(source, overrides=overrides, data=data))
        return _audit_records(config, effort) if config.of_records else audit_work(assemble(config), effort=effort)
    settings = settings_in(source.resolve())
    config = read_back(settings["config"])
    if config.of_records:
        return _audit_records(config, effort)
    work = reopened(settings, config, source.resolve())
    assert isinstance(work, ClientWork)  # noqa: S101 - whole clients have no other
    return audit_work(work, effort=effort)


def audit_plan(plan: Plan, budget: Budget, *, effort: Effort) -> Audited:
    """Attack a plan with this budget, on federations of canaries.

    Guarantee: no data are read and no ledger is opened. A right plan fails once in some 30,000 audits: each of about
    thirty checks fails once in a million.

    Edge cases: a refusal of the pipeline speaks against it. No figure includes the leakage of the paper's median clip.
    """
    games = [CanaryGame(plan=plan, colluding=True)] if plan.noise_by == "parties" else []
    games.append(CanaryGame(plan=plan))
    findings: list[Finding] = []
    notes = [f"seen: {plan.rounds} rounds of {games[0].canaries} canaries at a time"]
    if isinstance(plan.config.clip, MedianClip):
        notes.append("the median is not private: what it tells is in no figure here")

    def attacked(game: CanaryGame) -> list[Check]:
        plays = [game.play(effort.seed * 1_000_003 + number) for number in range(effort.plays(game))]
        findings.append(strongest(game, plays))
        kept = plays[: max(2, _NOISE // max(1, plays[0].noise.size))]
        return noise_checks(game, kept) + sampling_checks(game, plays)

    checks: list[Check] = []
    looks: list[tuple[str, Callable[[], Sequence[Check]]]] = [
        *(("canaries", partial(attacked, game)) for game in games),
        ("charges", partial(ledger_checks, plan, budget)),
        ("contributions", partial(contribution_checks, plan)),
        ("order", partial(order_checks, plan)),
        ("noise in earnest", lambda: [noise_in_earnest(plan)]),
        ("clients", partial(every_client_alike, plan, seed=effort.seed)),
        ("parties", partial(party_checks, plan, seed=effort.seed)),
        ("bits", partial(bit_checks, plan, seed=effort.seed)),
        ("shares", partial(share_checks, plan, seed=effort.seed)),
    ]
    for name, look in looks:
        try:
            checks += look()
        except IncrowdError as error:
            checks.append(Check.refused(name, error))
    sampler = plan.round(0).sampler
    settings = {
        "unit": "client",
        "clients": sampler.clients,
        "rounds": plan.rounds,
        "sampler": type(sampler).__name__,
        "clip": type(plan.config.clip).__name__,
        "noise": plan.noise_by if plan.config.groups is None else "correlated",
        "noise_multiplier": plan.noise_multiplier,
        "seed": effort.seed,
    }
    return Audited(
        claimed=plan.price.epsilon,
        delta=plan.budget.delta,
        findings=findings,
        checks=checks,
        settings=settings,
        notes=notes,
    )


def audit_work(work: ClientWork, *, effort: Effort) -> Audited:
    """Attack a configured federation: its plan by canaries and, on public data, a few rounds of its own training.

    Guarantee: private examples are not trained on; no ledger is opened.
    """
    found = audit_plan(work.plan, work.config.privacy.budget, effort=effort)
    notes, checks = [*found.notes], [*found.checks]
    if work.data.public:
        try:
            checks += pipeline_checks(work, seed=effort.seed)
        except IncrowdError as error:
            checks.append(Check.refused("federation", error))
    else:
        notes.append("the data are private: nothing was trained on them, and the training was not looked at")
    return replace(found, checks=checks, notes=notes, settings={**found.settings, "model_size": work.model.size})


def strongest(game: CanaryGame, plays: Sequence[Play]) -> Finding:
    """Score the attack of the promise: the worst canary, everything else known, every release seen."""
    plan = game.plan
    samplers = [plan.round(number).sampler for number in range(plan.rounds)]
    attack = "one canary, told from its neighbour by all releases"
    return Finding.of(
        np.concatenate([play.scores for play in plays]),
        np.concatenate([play.inside for play in plays]),
        claimed=plan.price.epsilon,
        delta=plan.budget.delta,
        gaussian=plan.config.groups is not None or all(each.expected_cohort == each.clients for each in samplers),
        unit="client",
        attack=attack + " and the shares of all colluders" * game.colluding,
        note=f"{len(plays)} federations; canaries at right angles are trials by themselves",
    )


def _is_specification(path: Path | None) -> bool:
    """Whether a file is a specification for devices: it has fields."""
    if path is None or not path.is_file():
        return False
    try:
        text = path.read_text(encoding="utf-8")
        keys = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(keys, dict) and "fields" in keys


def _audit_records(config: Config, effort: Effort) -> Audited:
    """Attack each silo with canary records; no record is read, and no ledger opened."""
    trials = effort.trials(_RECORDS, _QUICK_RECORDS)
    findings, checks, games = audit_silos(config, trials=trials, seed=effort.seed)
    claimed = max([0.0, *(finding.claimed for finding in findings)])
    settings = {"unit": "record", "rounds": config.privacy.rounds, "seed": effort.seed}
    note = f"attacked: {', '.join(game.name for game in games)}; silos whose plans are equal are attacked once"
    delta = config.privacy.delta
    return Audited(claimed=claimed, delta=delta, findings=findings, checks=checks, settings=settings, notes=[note])


def _audit_device(path: Path, *, effort: Effort) -> Audited:
    asked = read_specification(path)
    findings, checks = audit_specification(asked, trials=effort.trials(), seed=effort.seed)
    settings = {name: getattr(asked, name) for name in ("privacy", "bound", "noise")}
    settings |= {"unit": "contribution", "weights": asked.size, "seed": effort.seed}
    note = "epsilon is that of one contribution; a device's budget limits how many it makes"
    claimed, delta = asked.epsilon, asked.delta or 0.0
    return Audited(claimed=claimed, delta=delta, findings=findings, checks=checks, settings=settings, notes=[note])
