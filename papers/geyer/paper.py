"""The federation of Geyer, Klein and Nabi (2017), as their text says: algorithm 1 and section 4.

Their network on raw pixels, cohorts of a fixed size, the median of the cohort's norms as the clip, and the moments
accountant, which ends the training before its delta passes the threshold. Where the text leaves a number open (batches,
epochs, learning rate, cohorts and noise were found by a grid search, and are not stated), a grid search on the last
10,000 training examples, declared public, found the ones below.

What that accountant states is not what such a run guarantees: the median is not private, and the accountant's formula
is for Poisson cohorts. The plan is therefore priced as it is executed, and both figures are reported.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from dp_accounting import DpEvent

from incrowd import Budget, BudgetExceeded, Local, Plan, PlanConfig, Poisson, Relation, Schedule, ServerOptimizer
from incrowd.data import Split
from incrowd.learning import Model, mlp
from incrowd.privacy.account import compose, price
from incrowd.privacy.mechanism import MedianClip
from incrowd.privacy.plan import FixedSize, Step
from papers.geyer.moments import LAMBDAS, log_moments, moments_delta

HIDDEN = (600, 100)
INIT_SCALE = math.sqrt(6)
"""What makes the variance of torch's uniform first weights 2 / inputs (He et al. 2015); the text leaves it open."""

MEDIAN = "the median is not private, and its leakage is not in epsilon"
FIXED = "the moments accountant's formula is for Poisson cohorts, and these are of a fixed size"


def paper_network(inputs: int, outputs: int) -> Model:
    """600 and 100 hidden units without biases: 531,400 weights for 28 x 28 pixels and ten classes."""
    return mlp((inputs, *HIDDEN, outputs), bias=False)


def within(schedule: Schedule, *, clients: int, budget: Budget) -> Schedule:
    """The rounds before the one at which the moments accountant's delta would pass the budget's (algorithm 1, line 5).

    The schedule's steps follow one another, and its last step goes on for as long as delta allows.

    Edge cases: where not even one round is allowed, `BudgetExceeded`.
    """
    spent, steps = np.zeros(len(LAMBDAS)), []
    room = math.log(budget.delta) + LAMBDAS * budget.epsilon
    for step in schedule.steps:
        moments = log_moments(_round_as_poisson(step, clients))
        affordable = int(np.max(np.floor((room - spent) / moments)))
        last = step is schedule.steps[-1]
        rounds = affordable if last else min(step.rounds, affordable)
        if rounds < 1:
            break
        steps.append(replace(step, rounds=rounds))
        spent += rounds * moments
    if not steps:
        raise BudgetExceeded(f"the first round alone costs more than delta = {budget.delta:g}: give it more noise")
    return Schedule(tuple(steps))


def executed(schedule: Schedule, *, clients: int, delta: float) -> Plan:
    """The plan of these rounds as they are executed, whatever that costs: fixed sizes, clipped at the median."""
    config = PlanConfig(members=clients, schedule=schedule, sampling=FixedSize, clip=MedianClip())
    honest = price(compose(config.runs()), delta=delta, relation=config.relation)
    return config.plan(Budget(epsilon=honest.epsilon, delta=delta))


def as_poisson(schedule: Schedule, *, clients: int) -> DpEvent:
    """The rounds as the moments accountant takes them: as if each client had tossed its own coin."""
    return compose([(_round_as_poisson(step, clients), step.rounds) for step in schedule.steps])


@dataclass(frozen=True, kw_only=True)
class PaperSetup:
    """How a federation learns, and the cohorts m_t and noise sigma_t of its rounds, of which the last go on."""

    local: Local
    schedule: Schedule
    init_scale: float = INIT_SCALE
    server: ServerOptimizer = field(default_factory=ServerOptimizer, init=False)

    def model(self, inputs: int, outputs: int) -> Model:
        """The paper's network."""
        return paper_network(inputs, outputs)

    def promise(self, clients: int, budget: Budget) -> Plan:
        """The rounds that the paper's accountant allows."""
        return executed(within(self.schedule, clients=clients, budget=budget), clients=clients, delta=budget.delta)

    def prepared(self, split: Split, *, cache: Path | None = None) -> Split:
        """Raw pixels: the split as it is."""
        return split

    def stated(self, plan: Plan, budget: Budget) -> dict[str, object]:
        """What the paper states of such a run, and what the same rounds would cost with cohorts as it prices them."""
        event = as_poisson(plan.config.schedule, clients=plan.config.members)
        return {
            "epsilon": budget.epsilon,
            "budget_epsilon": budget.epsilon,
            "accountant": "moments",
            "delta_reached": moments_delta(event, epsilon=budget.epsilon),
            "epsilon_if_poisson": price(event, delta=budget.delta, relation=Relation.ADD_OR_REMOVE_ONE).epsilon,
            "warnings": [MEDIAN, FIXED],
        }


def _setup(schedule: Schedule, *, learning_rate: float, batches: int = 10, epochs: int = 1) -> PaperSetup:
    return PaperSetup(local=Local(learning_rate=learning_rate, batches=batches, epochs=epochs), schedule=schedule)


def _constant(cohort: int, noise_multiplier: float) -> Schedule:
    """As many rounds as delta allows."""
    return Schedule((Step(rounds=1, cohort=cohort, noise_multiplier=noise_multiplier),))


CONSTANTS = {
    100: _setup(_constant(100, 1.91), learning_rate=0.1),
    1000: _setup(_constant(220, 1.44), learning_rate=0.15),
    10_000: _setup(_constant(1000, 1.375), learning_rate=0.2),
}
"""What the grid search found, by the number of clients."""

QUICK = {10_000: _setup(_constant(1000, 0.95), learning_rate=0.2)}
"""Where the paper's communications take hours: fewer rounds, with as much less noise as the accountant then allows."""


def _round_as_poisson(step: Step, clients: int) -> DpEvent:
    """A round of this step as the moments accountant takes it."""
    return Poisson(clients=clients, cohort=step.cohort).event(step.noise_multiplier)
