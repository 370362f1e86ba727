"""What an audit of a silo looks at: its records as canaries, and the way of its rounds from inside."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import norm

from incrowd.audit.checks import ALARM, least_epsilon_of, likeness, size_of_noise
from incrowd.audit.finding import Check, Claim, Finding, bounded
from incrowd.audit.shares import share_checks
from incrowd.audit.silo_plays import SiloGame, SiloPlay, SumsGame, released_steps
from incrowd.errors import IncrowdError
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.config import Config
from incrowd.runs.silo_work import assemble_records, assemble_silos

"""So many numbers has the table in which the noise of a report is looked at."""


def silo_plays(game: SiloGame, *, trials: int, seed: int) -> list[SiloPlay]:
    """As many plays as give so many trials, and three at least: noise of one is held against that of others."""
    count = max(3, -(-trials // game.canaries))
    return [game.play(seed + number) for number in range(count)]


def silo_findings(game: SiloGame, plays: Sequence[SiloPlay]) -> list[Finding]:
    """What the canaries prove of the silo's epsilon."""
    plan = game.plan
    scores, inside = (np.concatenate([getattr(play, name) for play in plays]) for name in ("scores", "inside"))
    claim = Claim(
        unit="record",
        epsilon=max(play.epsilon for play in plays),
        delta=plan.budget.delta,
        gaussian=plan.training().sampling_prob == 1,
    )
    return [
        bounded(
            claim,
            scores[inside],
            scores[~inside],
            attack=f"records at right angles in {game.name}, seen through every step",
            note="the adversary sees the noised sum of each step, which is more than the weights that leave the silo",
        ),
    ]


def silo_checks(game: SiloGame, plays: Sequence[SiloPlay], *, seed: int) -> list[Check]:
    """Noise, batches, gradients, price and budget of the silo's rounds."""
    plan, name = game.plan, game.name
    noise = np.array([play.noise for play in plays if play.rounds == plays[0].rounds])
    steps = noise.shape[1]
    pairs = [(noise[:, first], noise[:, first + 1]) for first in range(min(steps - 1, 100))]
    pairs += [(noise[0], other) for other in noise[1:]]
    stated, lost = (
        max(play.epsilon for play in plays),
        least_epsilon_of(released_steps(plan, plays[0].rounds), plan.budget.delta),
    )
    longest = game.longest()
    return [
        size_of_noise(f"noise of the steps of {name}", noise.ravel()),
        likeness(pairs, name=f"noise of two steps of {name}, alike by"),
        *_batches(game, plays),
        Check(
            name=f"longest gradient that enters a step of {name}",
            measured=f"{longest:.6f} bounds",
            stated="at most 1",
            holds=longest <= 1 + 1e-4,  # rounded in float32, which the noise covers
        ),
        Check(
            name=f"price of {name}",
            measured=f"at least {lost:.4f}",
            stated=f"{stated:.4f}",
            holds=lost <= stated * (1 + 1e-6) and stated <= plan.budget.epsilon * (1 + 1e-9),
        ),
        *_budget(game, seed=seed),
    ]


def _batches(game: SiloGame, plays: Sequence[SiloPlay]) -> Iterator[Check]:
    """How often a record is in a batch, and that each has a coin of its own, thrown anew for every step."""
    training, name = game.plan.training(), game.name
    prob, batch = training.sampling_prob, training.expected_batch
    drawn = [play.drawn for play in plays if play.drawn.size]
    taken, chances = sum(int(one.sum()) for one in drawn), sum(one.size for one in drawn)
    reach = (float(norm.isf(ALARM)) * math.sqrt(chances * prob * (1 - prob)) + 10) if prob < 1 else 0.0
    yield Check(
        name=f"how often a record of {name} is in a batch",
        measured=f"{taken / max(1, chances):.4f} of the steps",
        stated=f"{prob:.4f}",
        holds=abs(taken - chances * prob) <= reach,
        note=f"would see {2 * reach / max(1.0, chances * prob):.1%} more or less",
    )
    if prob < 1:
        each = [one.sum(axis=0) - prob * len(one) for one in drawn]  # of a record, over the steps
        together = [one.sum(axis=1) - prob * one.shape[1] for one in drawn]  # of a step, over the records
        for what, counts, size in (("record", each, drawn[0].shape[0]), ("batch", together, drawn[0].shape[1])):
            scaled = np.concatenate(counts) / math.sqrt(max(1, size) * prob * (1 - prob))
            reach = 12 * math.sqrt((2 + 1 / (max(1, size) * prob * (1 - prob))) / scaled.size)
            ratio = float((scaled**2).mean())
            yield Check(
                name=f"spread of the draws of a {what} of {name}",
                measured=f"{ratio:.3f} of what is stated",
                stated="Poisson: each record by a coin of its own",
                holds=abs(ratio - 1) <= reach,
                note=f"would see {reach:.0%} more or less",
            )
    divisors = [play.divisor for play in plays]
    worst = max(divisors, key=lambda divisor: abs(divisor - batch))
    yield Check(
        name=f"divisor of a step of {name}",
        measured=f"{worst:.6g}",
        stated=f"{batch:.6g}, however many are drawn",
        holds=abs(worst - batch) <= 1e-3 * batch,
    )


def _budget(game: SiloGame, *, seed: int) -> Iterator[Check]:
    """A silo that is opened again knows what it spent."""
    plan = game.plan
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    given = sum(game.rounds_within(ledger, label=label, seed=seed) for label in ("first", "second", "third"))
    spent = ledger.spent().epsilon
    lost = least_epsilon_of(released_steps(plan, given), plan.budget.delta)
    yield Check(
        name=f"what three runs of {game.name} may spend together",
        measured=f"{spent:.4f} in {given} rounds",
        stated=f"at most {plan.budget.epsilon:.4f}",
        holds=spent <= plan.budget.epsilon * (1 + 1e-9) and lost <= plan.budget.epsilon * (1 + 1e-6),
    )


def audit_silo(game: SiloGame, *, trials: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Attack one silo. Edge cases: what its own code refuses on the way speaks against it."""
    try:
        plays = silo_plays(game, trials=trials, seed=seed)
        return silo_findings(game, plays), silo_checks(game, plays, seed=seed)
    except IncrowdError as error:
        refused = f"refused: {error}"
        return [], [Check(name=f"rounds of {game.name}", measured=refused, stated="work", holds=False)]


def audit_silos(config: Config, *, trials: int, seed: int) -> tuple[list[Finding], list[Check], list[SiloGame]]:
    """Attack each silo of some settings that is not like one before it; which these are.

    Edge cases: of silos with equal plans one stands for all.
    """
    alike: list[SiloGame] = []
    if config.privacy.noise_by != "party":
        plan = assemble_records(config).plan
        alike = [SumsGame(name="all silos", plan=plan)]
        if plan.noise_by == "parties":
            alike.append(SumsGame(name="all silos but colluders", plan=plan, colluding=True))
    federation = None if alike else assemble_silos(config)
    for name, plan in () if federation is None else zip(federation.names, federation.plans, strict=True):
        if all(plan != game.plan for game in alike):
            alike.append(SiloGame(name=name, plan=plan))
    findings, checks = [], []
    for game in alike:
        its_findings, its_checks = audit_silo(game, trials=trials, seed=seed)
        findings += its_findings
        checks += its_checks
    if alike:
        checks += share_checks(alike[0].plan, seed=seed)
    return findings, checks, alike
