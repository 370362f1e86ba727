"""What is doubtful about a run: each a sentence with a figure and what to do, all of it from what is public.

Before the first round it is the plan, the stated ranges, the settings and the public test examples that are looked at;
at the end, how good the model is on them. No private example is touched, so advice costs nothing.
"""

import math
from collections.abc import Iterator, Sequence

from incrowd.learning.features.table_rows import is_bare
from incrowd.privacy.plan.planner import over_all_rounds
from incrowd.privacy.statement import guess, rounded_up
from incrowd.runs.client_work import LedgerWork
from incrowd.runs.database import Record
from incrowd.runs.examples_advice import DIVERGED, of_examples
from incrowd.runs.folder import Summary
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_work import SiloWork

PROMISES_LITTLE = 50.0
"""An epsilon above this is no longer called a promise."""

LOUD = 1.0
"""Noise that is larger than all rounds together can move the model."""


def advice(work: LedgerWork | SiloWork) -> list[str]:
    """What is doubtful before the first round.

    Guarantee: it depends on the settings, the declared numbers, the model and test examples that are public, alone.
    """
    promised = [*_of_promise(work), *_of_clients(work), *_of_noise(work), *_of_columns(work)]
    test = work.data.test
    return promised if test is None else [*promised, *of_examples(work, test)]


def verdict(work: LedgerWork | SiloWork, summary: Summary, records: Sequence[Record]) -> list[str]:
    """What is doubtful at the end: a model that is no better than none, and one that went astray.

    Guarantee: it depends on the public test set, and on what was released and measured there. Edge cases: where there
    is no test set that is public, there is nothing to say.
    """
    if work.data.test is None:
        return []
    judgement = summary.get("verdict")
    return [*_astray(records), *(judgement["advice"] if judgement else ())]


def _of_promise(work: LedgerWork | SiloWork) -> Iterator[str]:
    """An epsilon that promises little; of silos, each can have its own."""
    plans = work.federation.plans if isinstance(work, SiloWork) else (work.plan,)
    epsilon = max(plan.budget.epsilon for plan in plans)
    if epsilon > PROMISES_LITTLE:
        right = rounded_up(100 * guess(epsilon, plans[0].budget.delta))
        yield (
            f"privacy.epsilon = {epsilon:g} promises little: who attacks may be right {right} % of the time. "
            "Choose one below 10."
        )


def _of_clients(work: LedgerWork | SiloWork) -> Iterator[str]:
    if work.data.clients == 1 and isinstance(work.config, SiloConfig):
        yield "data.clients = 1: one silo learns alone, and a server adds nothing to that. Find more silos."
    elif work.data.clients == 1:
        yield "data.clients = 1: nobody hides among others, and one client's noise is all there is. Find more clients."


def _of_noise(work: LedgerWork | SiloWork) -> Iterator[str]:
    """The noise of all rounds together, beside the farthest that their means can go together."""
    ratio, more = _noise_of_silos(work) if isinstance(work, SiloWork) else _noise_of_clients(work)
    if ratio > LOUD:
        yield (
            f"noise is {ratio:.3g} times what {work.rounds} rounds of {work.model.size:,} weights can move: expect "
            f"little to be learnt. {more}, or take a smaller model."
        )


def _noise_of_clients(work: LedgerWork) -> tuple[float, str]:
    """Noise over signal of the sums of all rounds, and what would make it less."""
    ratio = over_all_rounds(work.plan, weights=work.model.size)
    raised = "privacy.epsilon or privacy.cohort" if work.plan.config.groups is None else "privacy.epsilon"
    return ratio, f"Raise {raised}, find more clients"


def _noise_of_silos(work: SiloWork) -> tuple[float, str]:
    """The same of the mean over the silos, each with the noise of the first."""
    plans, multiplier = work.federation.plans, work.federation.noise_multiplier
    configs = [plan.config for plan in plans]
    variance = sum(1 / (one.schedule.at(0).cohort * one.schedule.communications * one.steps) for one in configs)
    variance /= len(plans) ** 2
    more = "Raise privacy.epsilon or local.batch_size, find more records"
    return multiplier * math.sqrt(work.model.size * variance), more


def _of_columns(work: LedgerWork | SiloWork) -> Iterator[str]:
    """Columns of which nobody knows how large their numbers are, although others are scaled by a stated range."""
    columns = work.data.table
    if columns is None:
        return
    names = columns.features or tuple(columns.schema)
    unknown = [name for name in names if is_bare(columns.meaning(name))]
    if not names or unknown:
        shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        by_size = work.config.features.name == "table"
        why = (
            "have no range, and are seen by their size unless all are on one scale: 1990 and 2020 look alike"
            if by_size
            else "go in as they are, in whatever unit: the largest numbers rule the gradient"
        )
        yield f"{shown or 'all columns'} {why}. State a range in data.columns, say age = {{range = [0, 120]}}."


def _astray(records: Sequence[Record]) -> Iterator[str]:
    measured = [record for record in records if record.accuracy is not None or record.loss is not None]
    losses = [record.loss for record in measured if record.loss is not None]
    last = measured[-1].loss if measured else None
    if measured and (last is None or last > DIVERGED * min(losses)):
        now = "not a finite number" if last is None else f"{last:.4g}, and was {min(losses):.4g}"
        yield f"the loss on the test set is {now}: the model went astray. Lower server.learning_rate."
