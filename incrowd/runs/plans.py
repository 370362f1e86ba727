"""The plans that settings state: of whole clients, of the records of all silos together, or of each silo."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from incrowd import _validate
from incrowd.data.clients import Clients
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, GaussianCurve, RenyiCurve, price
from incrowd.privacy.account.calibrate import most_rounds
from incrowd.privacy.account.events import RepeatedEvent, compose, mechanisms
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Schedule, constant, growing, preceded
from incrowd.runs.config import Config, clip_of

Figure = TypeVar("Figure", int, float)


def plan_of_clients(
    config: Config, budget: Budget, *, clients: int, parts: tuple[int, ...], schedule: Schedule | None
) -> Plan:
    """The plan for so many clients, who send vectors of these parts; a schedule is kept."""
    wanted = config.privacy
    cohort = _cohort(config, clients)
    plan = PlanConfig(
        members=clients,
        schedule=schedule_of(config, cohort) if schedule is None else schedule,
        sampling=SAMPLING[wanted.sampling] if wanted.groups is None else Cyclic,
        noise_by=wanted.noise_by,
        colluders=wanted.colluders,
        clip=clip_of(wanted.clip, parts, cohort),
        accountants=ACCOUNTANTS if wanted.accountant == "tightest" else (wanted.accountant.upper(),),
    )
    return plan.calibrate(budget) if schedule is None else plan.plan(budget)


def _cohort(config: Config, clients: int) -> float:
    wanted = config.privacy
    if wanted.groups is not None:
        _validate.count(groups=wanted.groups)
        return clients / wanted.groups
    if wanted.cohort is None and wanted.sampling != "everyone":
        raise ConfigError(field="cohort", value=None, remedy="say how many clients take part in a round")
    return float(clients) if wanted.cohort is None else wanted.cohort


def schedule_of(config: Config, cohort: float) -> Schedule:
    """The schedule of training, after the round of the label distribution, if any."""
    share, wanted, rounds = config.local.label_distribution, config.privacy, config.privacy.rounds
    if share is not None and rounds < 2:
        remedy = "plan at least 2: the first is for local.label_distribution"
        raise ConfigError(field="rounds", value=rounds, remedy=remedy)
    rounds -= share is not None
    if wanted.grow_from is None:
        training = constant(rounds=rounds, cohort=cohort)
    else:
        training = growing(rounds=rounds, first_cohort=wanted.grow_from, last_cohort=cohort)
    return training if share is None else preceded(training, share=share)


def declared_records(config: Config, data: Clients) -> tuple[int, ...]:
    """The public number of records of each silo: the declared one, or for public data the counted one."""
    wanted = config.privacy.records
    if wanted is None and data.public:
        return tuple(int(size) for size in data.sizes)
    if wanted is None:
        remedy = (
            "how many records a silo has is private and never counted: state a public number that it does not exceed, "
            "say records = 5000, or a list with one for each silo"
        )
        raise ConfigError(field="records", value=None, remedy=remedy)
    return _each(wanted, data.clients, field="records")


def _each(wanted: Figure | tuple[Figure, ...], silos: int, *, field: str) -> tuple[Figure, ...]:
    """One for each silo, of one for all or a list."""
    each = wanted if isinstance(wanted, tuple) else (wanted,) * silos
    if len(each) != silos:
        raise ConfigError(field=field, value=each, remedy=f"give one for each of the {silos} silos, or one")
    return each


def plan_of_all(config: Config, declared: Sequence[int], schedule: Schedule | None) -> Plan:
    """The one plan of all silos' records."""
    records, silos = sum(declared), len(declared)
    wanted, batch = config.privacy, config.local.batch_size
    cohort = float(records if batch is None else batch)
    _validate.at_most(records, "the declared number of all records", batch_size=cohort)
    plan = PlanConfig(
        members=records,
        schedule=constant(rounds=wanted.rounds, cohort=cohort) if schedule is None else schedule,
        unit="record",
        noise_by=wanted.noise_by,
        parties=silos if wanted.noise_by == "parties" else None,
        colluders=wanted.colluders,
        clip=FixedClip(clip_norm=wanted.clip_norm),
    )
    return plan.calibrate(wanted.budget) if schedule is None else plan.plan(wanted.budget)


def plans_of_silos(config: Config, records: Sequence[int]) -> tuple[Plan, ...]:
    """A plan for each silo; equal ones are priced once."""
    wanted, local = config.privacy, config.local
    epsilons = _each(wanted.epsilon, len(records), field="epsilon")
    made: dict[tuple[int, float], Plan] = {}
    for members, epsilon in zip(records, epsilons, strict=True):
        if (members, epsilon) not in made:
            plan = PlanConfig.of_records(
                records=members,
                rounds=wanted.rounds,
                clip_norm=wanted.clip_norm,
                batch_size=local.batch_size,
                epochs=local.epochs,
                noise_multiplier=1.0 if wanted.noise_multiplier is None else wanted.noise_multiplier,
            )
            budget = Budget(epsilon=epsilon, delta=wanted.delta)
            fixed = wanted.noise_multiplier is not None
            made[members, epsilon] = _as_many(plan, budget) if fixed else plan.calibrate(budget)
    return tuple(made[each] for each in zip(records, epsilons, strict=True))


def _as_many(config: PlanConfig, budget: Budget) -> Plan:
    """As many of the rounds as a budget allows at the stated noise."""

    def shortened(rounds: int) -> PlanConfig:
        return replace(config, schedule=Schedule((replace(config.schedule.steps[0], rounds=rounds),)))

    wanted = config.schedule.rounds
    if price(config.whole, delta=budget.delta, relation=config.relation).epsilon > budget.epsilon:
        most = most_rounds(lambda rounds: shortened(rounds).whole, budget=budget, relation=config.relation)
        wanted = min(most, wanted)
    return shortened(wanted).plan(budget)


def spent_after(plan: Plan, rounds: int) -> float:
    """An upper bound on the epsilon of a plan's first rounds, at the budget's delta.

    Guarantee: never below what these rounds cost, never above the price of the whole plan, and exactly that after the
    last round. The bound is exact (GDP) if everyone takes part in every round; otherwise it is by RDP, which takes well
    under a millisecond, while the tight figure takes most of a second.
    """
    if not 0 < rounds < plan.rounds:
        return plan.price.epsilon if rounds else 0.0
    first: list[RepeatedEvent] = []
    for event, count in plan.runs:
        first += [(event, min(count, rounds))] if rounds > 0 else []
        rounds -= count
    runs = mechanisms(compose(first))
    curve = GaussianCurve(runs) if GaussianCurve.supports(runs) else RenyiCurve(runs, plan.relation)
    return min(curve.epsilon(plan.budget.delta), plan.price.epsilon)
