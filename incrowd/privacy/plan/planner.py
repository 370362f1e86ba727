"""Solve a plan of equal rounds for its one unknown, and compare plans for a table or a picture."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeVar

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, delta_at, price
from incrowd.privacy.account.calibrate import most_rounds
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, NormalisedClip
from incrowd.privacy.plan.plan import SAMPLING, NoiseBy, Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, Poisson, Schedule, Step, apart
from incrowd.privacy.statement import guess

T = TypeVar("T")

SMALLEST_DELTA = 1e-30
"""The delta that is stated where hardly any is needed."""

_UNKNOWNS = ("noise_multiplier", "rounds", "cohort", "epsilon", "delta")


def signal(clients: int, budget: Budget) -> float:
    """How far the sum over all clients, if they agree, stands above the noise of a single release about everyone.

    It says how many numbers a budget can teach, whatever the number of clients.
    """
    asked = Question(clients=clients, rounds=1, epsilon=budget.epsilon, delta=budget.delta, sampling=Everyone)
    return clients / asked.answer().noise_multiplier


@dataclass(frozen=True, kw_only=True)
class Question:
    """Equal rounds with exactly one unknown (None) among noise_multiplier, rounds, cohort, epsilon and delta.

    Guarantee: the answer is a plan whose price fits its budget; the unknown is rounded to the private side (more noise,
    fewer rounds, a smaller cohort, a larger epsilon or delta).
    """

    clients: int
    rounds: int | None = None
    cohort: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    sampling: Sampling = Poisson
    noise_by: NoiseBy = "server"
    colluders: int | None = None
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    accountants: tuple[str, ...] = ACCOUNTANTS

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        if self.sampling is Everyone and self.cohort is None:
            object.__setattr__(self, "cohort", float(self.clients))

    def answer(self) -> Plan:
        """The plan, with the unknown solved for."""
        unknowns = [name for name in _UNKNOWNS if getattr(self, name) is None]
        if len(unknowns) != 1:
            raise ConfigError(field="unknowns", value=unknowns, remedy=f"leave out exactly one of {list(_UNKNOWNS)}")
        if unknowns == ["noise_multiplier"]:
            return self.config().calibrate(self._budget)
        if unknowns in (["rounds"], ["cohort"]):
            return self._largest(unknowns[0]).plan(self._budget)
        config = self.config()
        whole, asked = config.whole, {"relation": config.relation, "accountants": self.accountants}
        if self.epsilon is None:
            delta = _known(self.delta)
            return config.plan(Budget(epsilon=price(whole, delta=delta, **asked).epsilon, delta=delta))
        delta = delta_at(whole, epsilon=self.epsilon, **asked) * (1 + 1e-6)
        return config.plan(Budget(epsilon=self.epsilon, delta=max(delta, SMALLEST_DELTA)))

    def config(self) -> PlanConfig:
        """The question as a config; relative noise 1 stands for an unknown multiplier."""
        noise = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        step = Step(rounds=_known(self.rounds), cohort=_known(self.cohort), noise_multiplier=noise)
        return PlanConfig(
            members=self.clients,
            schedule=Schedule((step,)),
            sampling=self.sampling,
            noise_by=self.noise_by,
            colluders=self.colluders,
            clip=self.clip,
            accountants=self.accountants,
        )

    @property
    def _budget(self) -> Budget:
        return Budget(epsilon=_known(self.epsilon), delta=_known(self.delta))

    def _largest(self, unknown: str) -> PlanConfig:
        """The config with the most rounds, or the largest cohort, that the budget allows."""

        def made(value: int) -> PlanConfig:
            found = replace(self, rounds=value) if unknown == "rounds" else replace(self, cohort=value)
            return found.config()

        cohort = {} if unknown == "rounds" else {"most": self.clients, "one": "a cohort of one client"}
        asked = {"budget": self._budget, "relation": made(1).relation, "accountants": self.accountants, **cohort}
        return made(most_rounds(lambda value: made(value).whole, **asked))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Plans for every combination of these numbers of clients, budgets, rounds and cohorts.

    `shares` are cohorts in parts of the clients. Missing rounds or cohorts are solved for when the noise is given, and
    otherwise taken from a small grid. An epsilon of None is solved for when noise, rounds and cohort are all given.
    """

    clients: tuple[int, ...]
    epsilons: tuple[float | None, ...]
    deltas: tuple[float, ...]
    rounds: tuple[int, ...] = ()
    cohorts: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    noise_multiplier: float | None = None
    sampling: str = "poisson"
    noise_by: NoiseBy = "server"
    colluders: int | None = None
    accountant: str = "tightest"

    def __post_init__(self) -> None:
        for clients in self.clients:
            _validate.count(clients=clients)
        for delta in self.deltas:
            _validate.fraction(delta=delta)
        for share in self.shares:
            _validate.probability(cohort=share)
        for epsilon in self.epsilons:
            self._check_epsilon(epsilon)

    @property
    def several(self) -> bool:
        """Whether more than rounds and cohorts differ."""
        return len(self.clients) * len(self.epsilons) * len(self.deltas) > 1

    def plans(self) -> Iterator[Plan]:
        """The plans, one after the other: each can take a second."""
        for clients, epsilon, delta in product(self.clients, self.epsilons, self.deltas):
            asked = Question(
                clients=clients,
                noise_multiplier=self.noise_multiplier,
                epsilon=epsilon,
                delta=delta,
                sampling=SAMPLING[self.sampling],
                noise_by=self.noise_by,
                colluders=self.colluders,
                accountants=ACCOUNTANTS if self.accountant == "tightest" else (self.accountant.upper(),),
            )
            for rounds, cohort in product(self._rounds(), self._cohorts(clients)):
                yield replace(asked, rounds=rounds, cohort=cohort).answer()

    def _check_epsilon(self, epsilon: float | None) -> None:
        """Exactly one of noise, rounds, cohort and epsilon is open."""
        if epsilon is not None:
            _validate.positive(epsilon=epsilon)
        cohort = self.cohorts or self.shares or self.sampling == "everyone"
        settled = self.noise_multiplier is not None and self.rounds and cohort
        if settled and epsilon is not None:
            remedy = "noise, rounds and cohort are given and decide it: leave it out, or one of them"
            raise ConfigError(field="epsilon", value=epsilon, remedy=remedy)
        if not settled and epsilon is None:
            remedy = "state it: it is found only where noise, rounds and cohort are all given"
            raise ConfigError(field="epsilon", value=None, remedy=remedy)

    def _rounds(self) -> Sequence[int | None]:
        return self.rounds or ((10, 30, 100, 300) if self.noise_multiplier is None else (None,))

    def _cohorts(self, clients: int) -> Sequence[float | None]:
        found = [*self.cohorts, *(max(1.0, float(int(share * clients))) for share in self.shares)]
        if found:
            return found
        if self.sampling == "everyone":
            return (float(clients),)
        if self.noise_multiplier is not None and self.rounds:
            return (None,)
        percents = (10,) if self.several else (2, 10, 50, 100)
        return sorted({max(1.0, float(clients * percent // 100)) for percent in percents})


def row(plan: Plan, *, weights: int) -> dict[str, object]:
    """A plan as one line of a table.

    `noise_to_signal` is the L2 norm of the noise on the last round's mean over the largest norm that the mean can have,
    for a model of so many weights; `over_all_rounds` is the same for the sum of all rounds, whose noise adds up more
    slowly than what they learn. `odds` is how often an attacker is right at most (`incrowd.privacy.statement.guess`).
    """
    _validate.count(weights=weights)
    config, steps = plan.config, plan.config.schedule.steps
    last, noise = config.sampler(steps[-1]), steps[-1].noise_multiplier
    return {
        "rounds": plan.rounds,
        "cohort": last.expected_cohort,
        "sampling_prob": last.expected_cohort / config.members,
        "sampling": config.sampling.__name__,
        "noise_by": plan.noise_by,
        "colluders": config.sharing[1] if plan.noise_by == "parties" else None,
        "sensitivity_in_clips": apart(plan.relation),
        "noise_multiplier": noise,
        "epsilon": plan.price.epsilon,
        "delta": plan.budget.delta,
        "odds": guess(plan.price.epsilon, plan.budget.delta),
        "accountant": plan.price.accountant,
        "by_accountant": dict(plan.price.by_accountant),
        "communications": config.schedule.communications,
        "noise_to_signal": noise * _added_up(plan) * math.sqrt(weights) / last.expected_cohort,
        "over_all_rounds": over_all_rounds(plan, weights=weights),
        "schedule": [
            {
                "rounds": step.rounds,
                "cohort": step.cohort,
                "sampling_prob": config.sampler(step).expected_cohort / config.members,
                "noise_multiplier": step.noise_multiplier,
            }
            for step in steps
        ],
    }


def over_all_rounds(plan: Plan, *, weights: int) -> float:
    """The L2 norm of the noise of all rounds together over the farthest that their means can go together."""
    schedule = plan.config.schedule
    if plan.correlated is not None:
        deviation = plan.correlated.over_all_rounds / schedule.at(0).cohort
    else:
        deviation = math.sqrt(sum(step.rounds * (step.noise_multiplier / step.cohort) ** 2 for step in schedule.steps))
    return math.sqrt(weights) * _added_up(plan) * deviation / plan.rounds


def _added_up(plan: Plan) -> float:
    """The deviation of a sum's noise, in noise multipliers: that of local noise of all clients, or of all shares."""
    if plan.noise_by == "parties":
        parties, colluders = plan.config.sharing
        return math.sqrt(parties / (parties - colluders))
    return math.sqrt(plan.config.members) if plan.noise_by == "party" else 1.0


def ranked(plans: Sequence[Plan]) -> list[int]:
    """The rank of each plan among these, 1 where the noise of all rounds together is least beside what they can learn.

    Plans of one rank are told apart by the number of communications: fewer come first.
    """
    keys = [(over_all_rounds(plan, weights=1), plan.config.schedule.communications) for plan in plans]
    order = sorted(range(len(plans)), key=keys.__getitem__)
    return [order.index(place) + 1 for place in range(len(plans))]


def _known(value: T | None) -> T:
    if value is None:
        raise ConfigError(field="unknowns", value=None, remedy="only one number can be unknown")
    return value
