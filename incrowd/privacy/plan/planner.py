"""What a budget buys: solve a plan of equal rounds for its one unknown."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, delta_at, price
from incrowd.privacy.account.calibrate import largest_cohort, most_rounds
from incrowd.privacy.account.events import compose
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, NormalisedClip
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, Poisson
from incrowd.privacy.plan.schedule import Schedule, Step

T = TypeVar("T")

SMALLEST_DELTA = 1e-30
"""The answer to what delta is needed, where hardly any is."""


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

    Edge cases: no unknown, or more than one, is refused; a question without an answer says which number to change.
    Under `Everyone` the cohort is all clients and cannot be asked for.
    """

    clients: int
    rounds: int | None = None
    cohort: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    sampling: Sampling = Poisson
    noise_by: NoiseBy = "server"
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    accountants: tuple[str, ...] = ACCOUNTANTS

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        if self.sampling is Everyone and self.cohort is None:
            object.__setattr__(self, "cohort", float(self.clients))

    def answer(self) -> Plan:
        """The plan, with the unknown solved for."""
        unknowns = [name for name in _SOLVERS if getattr(self, name) is None]
        if len(unknowns) != 1:
            raise ConfigError(field="unknowns", value=unknowns, remedy=f"leave out exactly one of {list(_SOLVERS)}")
        return _SOLVERS[unknowns[0]](self)

    def config(self) -> PlanConfig:
        """The question as a config; relative noise 1 stands for an unknown multiplier."""
        noise = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        step = Step(rounds=_known(self.rounds), cohort=_known(self.cohort), noise_multiplier=noise)
        return PlanConfig(
            members=self.clients,
            schedule=Schedule((step,)),
            sampling=self.sampling,
            noise_by=self.noise_by,
            clip=self.clip,
            accountants=self.accountants,
        )

    def budget(self) -> Budget:
        """The budget, when both of its numbers are known."""
        return Budget(epsilon=_known(self.epsilon), delta=_known(self.delta))


def _solve_noise(question: Question) -> Plan:
    return question.config().calibrate(question.budget())


def _solve_rounds(question: Question) -> Plan:
    rounds = most_rounds(
        lambda rounds: compose(replace(question, rounds=rounds).config().runs()),
        budget=question.budget(),
        relation=replace(question, rounds=1).config().relation,
        accountants=question.accountants,
    )
    return replace(question, rounds=rounds).config().plan(question.budget())


def _solve_cohort(question: Question) -> Plan:
    cohort = largest_cohort(
        lambda cohort: compose(replace(question, cohort=cohort).config().runs()),
        budget=question.budget(),
        relation=replace(question, cohort=1).config().relation,
        accountants=question.accountants,
        clients=question.clients,
    )
    return replace(question, cohort=cohort).config().plan(question.budget())


def _solve_epsilon(question: Question) -> Plan:
    config, delta = question.config(), _known(question.delta)
    cost = price(compose(config.runs()), delta=delta, relation=config.relation, accountants=question.accountants)
    return config.plan(Budget(epsilon=cost.epsilon, delta=delta))


def _solve_delta(question: Question) -> Plan:
    config, epsilon = question.config(), _known(question.epsilon)
    delta = delta_at(
        compose(config.runs()), epsilon=epsilon, relation=config.relation, accountants=question.accountants
    )
    return config.plan(Budget(epsilon=epsilon, delta=max(delta * (1 + 1e-6), SMALLEST_DELTA)))


_SOLVERS: dict[str, Callable[[Question], Plan]] = {
    "noise_multiplier": _solve_noise,
    "rounds": _solve_rounds,
    "cohort": _solve_cohort,
    "epsilon": _solve_epsilon,
    "delta": _solve_delta,
}


def _known(value: T | None) -> T:
    if value is None:
        raise ConfigError(field="unknowns", value=None, remedy="only one number can be unknown")
    return value
