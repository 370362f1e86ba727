"""What a budget buys: plans side by side, for a table or a picture."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget
from incrowd.privacy.plan.plan import LOCAL_SENSITIVITY, SAMPLING, NoiseBy, Plan, PlanConfig
from incrowd.privacy.plan.planner import Question
from incrowd.privacy.plan.schedule import Step, growing
from incrowd.privacy.statement import guess


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to look at for one budget: every combination of these rounds and cohorts, by name where a name will do.

    `shares` are cohorts, too, in parts of the clients.

    Edge cases: rounds or cohorts that are left out are found when the noise is given, and otherwise taken from a small
    grid; where noise, rounds and cohort are all given, it is epsilon that is found, and one that is given, too, is one
    number too many: refused. A cohort that grows starts from `grow_from`; a share of less than one client is one
    client.
    """

    clients: int
    epsilon: float | None
    delta: float
    rounds: tuple[int, ...] = ()
    cohorts: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    noise_multiplier: float | None = None
    sampling: str = "poisson"
    noise_by: NoiseBy = "server"
    accountant: str = "tightest"
    grow_from: float | None = None

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        _validate.fraction(delta=self.delta)
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon)
        self._check_unknown()
        if self.grow_from is not None and self.noise_multiplier is not None:
            raise ConfigError(field="grow_from", value=self.grow_from, remedy="a growing schedule finds its own noise")
        if self.grow_from is not None and not (self.rounds and (self.cohorts or self.shares)):
            remedy = "say how many rounds there are, and the cohort to grow to"
            raise ConfigError(field="grow_from", value=self.grow_from, remedy=remedy)
        for share in self.shares:
            _validate.probability(cohort=share)

    @property
    def accountants(self) -> tuple[str, ...]:
        """The accountants to ask."""
        return ACCOUNTANTS if self.accountant == "tightest" else (self.accountant.upper(),)

    @property
    def settled(self) -> bool:
        """Whether noise, rounds and cohort are all given, so that epsilon is what is asked for."""
        everyone = self.sampling == "everyone"
        return bool(self.noise_multiplier is not None and self.rounds and (self.cohorts or self.shares or everyone))

    def _check_unknown(self) -> None:
        """Exactly one of noise, rounds, cohort and epsilon is open."""
        if self.settled and self.epsilon is not None:
            remedy = "noise, rounds and cohort are given and decide it: leave it out, or one of them"
            raise ConfigError(field="epsilon", value=self.epsilon, remedy=remedy)
        if not self.settled and self.epsilon is None:
            remedy = "state it: it is found only where noise, rounds and cohort are all given"
            raise ConfigError(field="epsilon", value=None, remedy=remedy)

    def plans(self) -> Iterator[Plan]:
        """The plans, one after the other: each can take a second."""
        for rounds, cohort in product(self._rounds(), self._cohorts()):
            if self.grow_from is not None and rounds is not None and cohort is not None and self.epsilon is not None:
                budget = Budget(epsilon=self.epsilon, delta=self.delta)
                yield self._grown(rounds, budget, first=self.grow_from, last=cohort)
            else:
                yield self._question(rounds, cohort).answer()

    def _rounds(self) -> Sequence[int | None]:
        if self.rounds:
            return self.rounds
        return (10, 30, 100, 300) if self.noise_multiplier is None else (None,)

    def _cohorts(self) -> Sequence[float | None]:
        asked = [*self.cohorts, *(max(1.0, float(int(share * self.clients))) for share in self.shares)]
        if self.sampling == "everyone" and not asked:
            return (float(self.clients),)
        if asked:
            return asked
        if self.noise_multiplier is not None and self.rounds:
            return (None,)
        return sorted({max(1.0, float(self.clients * percent // 100)) for percent in (2, 10, 50, 100)})

    def _question(self, rounds: int | None, cohort: float | None) -> Question:
        return Question(
            clients=self.clients,
            rounds=rounds,
            cohort=cohort,
            noise_multiplier=self.noise_multiplier,
            epsilon=self.epsilon,
            delta=self.delta,
            sampling=SAMPLING[self.sampling],
            noise_by=self.noise_by,
            accountants=self.accountants,
        )

    def _grown(self, rounds: int, budget: Budget, *, first: float, last: float) -> Plan:
        schedule = growing(rounds=rounds, first_cohort=first, last_cohort=last)
        config = PlanConfig(
            members=self.clients,
            schedule=schedule,
            sampling=SAMPLING[self.sampling],
            noise_by=self.noise_by,
            accountants=self.accountants,
        )
        return config.calibrate(budget)


def what_if(
    wish: Wish, *, clients: Sequence[int], epsilons: Sequence[float | None], deltas: Sequence[float]
) -> Iterator[Plan]:
    """The plans of a wish for every combination of other numbers of clients, epsilons and deltas.

    Edge cases: where several of these are looked at, and neither cohorts nor shares are given, it is for a tenth of the
    clients a round, or all where nobody is sampled.
    """
    several = len(clients) * len(epsilons) * len(deltas) > 1
    sampled = wish.sampling != "everyone" and (wish.noise_multiplier is None or not wish.rounds)
    if several and sampled and not wish.cohorts and not wish.shares:
        wish = replace(wish, shares=(0.1,))
    for number, epsilon, delta in product(clients, epsilons, deltas):
        yield from replace(wish, clients=number, epsilon=epsilon, delta=delta).plans()


def row(plan: Plan, *, weights: int) -> dict[str, object]:
    """A plan as one line of a table.

    `noise_to_signal` is the L2 norm of the noise on the last round's mean over the largest norm that the mean can have,
    for a model of so many weights; `over_all_rounds` is the same for the sum of all rounds, whose noise adds up more
    slowly than what they learn. `odds` is how often an attacker is right at most (`incrowd.privacy.statement.guess`).
    """
    _validate.count(weights=weights)
    last = plan.config.sampler(plan.config.schedule.steps[-1])
    noise = plan.config.schedule.steps[-1].noise_multiplier
    return {
        "rounds": plan.rounds,
        "cohort": last.expected_cohort,
        "sampling_prob": last.expected_cohort / plan.config.members,
        "sampling": plan.config.sampling.__name__,
        "noise_by": plan.noise_by,
        "sensitivity_in_clips": LOCAL_SENSITIVITY if plan.noise_by == "party" else last.sensitivity_in_clips,
        "noise_multiplier": noise,
        "epsilon": plan.price.epsilon,
        "delta": plan.budget.delta,
        "odds": guess(plan.price.epsilon, plan.budget.delta),
        "accountant": plan.price.accountant,
        "by_accountant": dict(plan.price.by_accountant),
        "communications": plan.config.schedule.communications,
        "noise_to_signal": noise * math.sqrt(weights) / last.expected_cohort,
        "over_all_rounds": over_all_rounds(plan, weights=weights),
        "schedule": [_step(plan.config, step) for step in plan.config.schedule.steps],
    }


def over_all_rounds(plan: Plan, *, weights: int) -> float:
    """The L2 norm of the noise of all rounds together over the farthest that their means can go together."""
    config = plan.config
    if plan.correlated is not None:
        return math.sqrt(weights) * plan.correlated.over_all_rounds / config.schedule.at(0).cohort / plan.rounds
    parts = ((step, config.sampler(step).expected_cohort) for step in config.schedule.steps)
    variance = sum(step.rounds * (step.noise_multiplier / cohort) ** 2 for step, cohort in parts)
    return math.sqrt(weights * variance) / plan.rounds


def ranked(plans: Sequence[Plan]) -> list[int]:
    """The rank of each plan among these, 1 where the noise of all rounds together is least beside what they can learn.

    Plans of one rank are told apart by the number of communications: fewer come first.
    """
    order = [(over_all_rounds(plan, weights=1), plan.config.schedule.communications) for plan in plans]
    places = sorted(range(len(plans)), key=lambda place: order[place])
    ranks = [0] * len(plans)
    for rank, place in enumerate(places, start=1):
        ranks[place] = rank
    return ranks


def _step(config: PlanConfig, step: Step) -> dict[str, object]:
    probability = config.sampler(step).expected_cohort / config.members
    return {
        "rounds": step.rounds,
        "cohort": step.cohort,
        "sampling_prob": probability,
        "noise_multiplier": step.noise_multiplier,
    }
