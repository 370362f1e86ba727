"""What a growing cohort is worth at the same budget: m_t rises while sigma_t^2 / m_t stays as it is.

Geyer, Klein and Nabi (2017, sections 3 and 6) state that in early rounds fewer clients with less noise hardly harm, and
save budget for later rounds. Both parts are measured: `early` after a few rounds, `whole` at the end of the budget.
Everything but cohorts and noise is that of the recipe `paper`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness import checks
from harness.seeds import Entry, Say, silent
from incrowd import Budget, Plan, Schedule
from incrowd.data import Split
from incrowd.privacy.plan import Step, growing
from papers.geyer.measure import EPSILON, ROWS, Curve, check_rows, curve, followed, shaped
from papers.geyer.moments import moments_epsilon
from papers.geyer.paper import CONSTANTS, as_poisson, executed, within

EARLY_ROUNDS = 2
LEVELS = 4


@dataclass(frozen=True, kw_only=True)
class Growing:
    """What to compare, and on which data. `factors` are the first cohorts, as parts of the last.

    Edge cases: a factor that is not above 0 and at most 1, a number of clients that is no row of the paper, a number of
    seeds or an epsilon that is not positive: refused.
    """

    split: Split
    rows: Sequence[int] = (100,)
    factors: Sequence[float] = (1.0, 0.5, 0.25)
    epsilon: float = EPSILON
    seeds: int = 3
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(seeds=self.seeds)
        checks.positive(epsilon=self.epsilon)
        for factor in self.factors:
            checks.probability(factor=factor)
        check_rows(self.rows)

    def tables(self) -> dict[str, list[Entry]]:
        """Both tables."""
        return {"early": self.early(), "whole": self.whole()}

    def early(self) -> list[Entry]:
        """The accuracy after a few first rounds of so many clients, and what these rounds cost."""
        return [self._early(clients, factor) for clients in self.rows for factor in self.factors]

    def whole(self) -> list[Entry]:
        """The accuracy where the same budget ends, for each row and first cohort."""
        return [self._whole(clients, factor) for clients in self.rows for factor in self.factors]

    def _early(self, clients: int, factor: float) -> Entry:
        last = CONSTANTS[clients].schedule.steps[-1]
        cohort = max(1, round(factor * last.cohort))
        noise = last.noise_multiplier * math.sqrt(cohort / last.cohort)
        schedule = Schedule((Step(rounds=EARLY_ROUNDS, cohort=cohort, noise_multiplier=noise),))
        plan = executed(schedule, clients=clients, delta=ROWS[clients].delta)
        epsilon = moments_epsilon(as_poisson(schedule, clients=clients), delta=plan.budget.delta)
        return self._measured(clients, plan) | {"epsilon": epsilon}

    def _whole(self, clients: int, factor: float) -> Entry:
        budget = Budget(epsilon=self.epsilon, delta=ROWS[clients].delta)
        schedule = grown(CONSTANTS[clients].schedule, factor, clients=clients, budget=budget)
        plan = executed(within(schedule, clients=clients, budget=budget), clients=clients, delta=budget.delta)
        return self._measured(clients, plan) | {"epsilon": self.epsilon}

    def _measured(self, clients: int, plan: Plan) -> Entry:
        setup, steps = CONSTANTS[clients], plan.config.schedule.steps
        self.say(f"{clients} clients, {steps[0].cohort:g} to {steps[-1].cohort:g} a round: {plan.rounds} rounds")

        def follow(seed: int) -> Curve:
            return curve(setup, plan, self.split, seed=seed, every=plan.rounds)

        weights, seeds = shaped(setup.model, self.split).size, range(self.seeds)
        repeats = followed(follow, plan=plan, claim={}, weights=weights, seeds=seeds, say=self.say)
        return {
            "clients": clients,
            "first_cohort": float(steps[0].cohort),
            "last_cohort": float(steps[-1].cohort),
            "ratio": steps[-1].noise_multiplier ** 2 / steps[-1].cohort,
            "rounds": plan.rounds,
            "communications": plan.config.schedule.communications,
            "epsilon_honest": plan.price.epsilon,
            "delta": plan.budget.delta,
            "accuracy": repeats.accuracy,
            "accuracy_sd": repeats.spread,
            "seeds": self.seeds,
        }


def grown(schedule: Schedule, factor: float, *, clients: int, budget: Budget) -> Schedule:
    """The same with first cohorts of a part of the last, which is reached after half of its rounds."""
    last = schedule.steps[-1]
    if factor == 1:
        return schedule
    rounds = within(schedule, clients=clients, budget=budget).rounds
    first = max(1.0, factor * last.cohort)
    rising = growing(rounds=max(LEVELS, rounds // 2), first_cohort=first, last_cohort=last.cohort, steps=LEVELS)
    return rising.scaled(last.noise_multiplier)
