"""Doubts about a run: a sentence each, with a figure and a remedy, from public facts alone.

Before the first round they are about the plan and the stated ranges; at the end, about the model's quality on public
test examples. No private example is read, so advice costs nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from incrowd.learning.features.table_rows import is_bare
from incrowd.privacy.plan.planner import over_all_rounds
from incrowd.privacy.statement import guess, rounded_up
from incrowd.runs.folder import Summary
from incrowd.runs.work import SiloWork, Work

PROMISES_LITTLE = 50.0  # a larger epsilon is no longer called a promise
LOUD = 1.0  # the ratio of noise to the farthest move of all rounds together from which on the noise is loud
UNEVEN = 1.5  # times its even share: such a class makes accuracy tell little
ERRORS = 2.0  # standard errors above the baseline: a model has learned something

_NAMES = {
    "accuracy": ("accuracy", "always saying the most frequent class"),
    "balanced_accuracy": ("balanced accuracy", "guessing"),
    "auc": ("AUC", "guessing"),
    "r2": ("R²", "always saying the mean"),
}
"""The names of measures and of their baselines."""


def advice(work: Work) -> list[str]:
    """The doubts before the first round, from the settings, the declared numbers and the model alone."""
    return [*_of_promise(work), *_of_noise(work), *_of_columns(work)]


def verdict(summary: Summary) -> list[str]:
    """The doubts at the end: a model that is no better than none on the public test set."""
    return [] if summary["verdict"] is None else list(summary["verdict"]["advice"])


def _of_promise(work: Work) -> Iterator[str]:
    """An epsilon that promises little; each silo can have its own."""
    epsilon, delta = max(plan.budget.epsilon for plan in work.plans), work.plan.budget.delta
    if epsilon > PROMISES_LITTLE:
        yield (
            f"privacy.epsilon = {epsilon:g} promises little: who attacks may be right "
            f"{rounded_up(100 * guess(epsilon, delta))} % of the time. Choose one below 10."
        )


def _of_noise(work: Work) -> Iterator[str]:
    """The noise of all rounds together, in units of the farthest move of their means."""
    if isinstance(work, SiloWork):  # the mean over the silos has the noise of the first in each
        configs = [plan.config for plan in work.plans]
        variance = sum(1 / (one.schedule.at(0).cohort * one.schedule.communications * one.steps) for one in configs)
        ratio = work.plan.noise_multiplier * math.sqrt(work.model.size * variance) / len(configs)
        more = "privacy.epsilon or local.batch_size, find more records"
    else:
        ratio = over_all_rounds(work.plan, weights=work.model.size)
        cohort = " or privacy.cohort" if work.plan.config.groups is None else ""
        more = f"privacy.epsilon{cohort}, find more clients"
    if ratio > LOUD:
        yield (
            f"noise is {ratio:.3g} times what {work.rounds} rounds of {work.model.size:,} weights can move: expect "
            f"little to be learnt. Raise {more}, or take a smaller model."
        )


def _of_columns(work: Work) -> Iterator[str]:
    """Columns without a stated range, although others are scaled by one."""
    columns = work.data.table
    if columns is None:
        return
    names = columns.features or tuple(columns.schema)
    unknown = [name for name in names if is_bare(columns.meaning(name))]
    if not names or unknown:
        shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        why = (
            "have no range, and are seen by their size unless all are on one scale: 1990 and 2020 look alike"
            if work.config.features.name == "table"
            else "go in as they are, in whatever unit: the largest numbers rule the gradient"
        )
        yield f"{shown or 'all columns'} {why}. State a range in data.columns, say age = {{range = [0, 120]}}."


def judged(metrics: Mapping[str, Any], *, examples: int, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The measure, its value, its standard error, the baseline, and a remedy where the model is no better.

    Labels that are numbers are measured by R², two uneven classes by AUC, more of them by balanced accuracy, others by
    accuracy; None if the metrics have none of these.
    """
    found = _measured(metrics, examples)
    if found is None:
        return None
    measure, value, baseline, std = found
    advice: list[str] = []
    if value - baseline <= ERRORS * std:
        name, trivial = _NAMES[measure]
        told = f"{name} {value:.4f} ± {std:.4f} is no better than {trivial}, {baseline:.4f}."
        advice = [f"{told} {_remedy(settings, measure)}"]
    return {"measure": measure, "value": value, "baseline": baseline, "std": std, "advice": advice}


def _measured(metrics: Mapping[str, Any], examples: int) -> tuple[str, float, float, float] | None:
    r2, accuracy = metrics.get("r2"), metrics.get("accuracy")
    if r2 is not None:
        return "r2", r2, 0.0, abs(1 - r2) * math.sqrt(2 / examples)
    trivial = (metrics.get("baseline") or {}).get("accuracy")
    if accuracy is None or trivial is None:
        return None
    rows: Sequence[Mapping[str, Any]] = [row for row in metrics.get("per_class") or () if row["support"]]
    if len(rows) > 1 and trivial * len(rows) >= UNEVEN:
        if len(rows) == 2 and metrics.get("auc") is not None:
            return "auc", metrics["auc"], 0.5, _of_auc(metrics["auc"], rows[0]["support"], rows[1]["support"])
        spread = sum(row["recall"] * (1 - row["recall"]) / row["support"] for row in rows)
        return "balanced_accuracy", metrics["balanced_accuracy"], 1 / len(rows), math.sqrt(spread) / len(rows)
    return "accuracy", accuracy, trivial, math.sqrt(accuracy * (1 - accuracy) / examples)


def _of_auc(auc: float, first: int, second: int) -> float:
    """The standard error of an AUC (Hanley and McNeil 1982)."""
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (first - 1) * (one - auc**2) + (second - 1) * (two - auc**2)
    return math.sqrt(max(spread, 0.0) / (first * second))


def _remedy(settings: Mapping[str, Any], measure: str) -> str:
    more = f"raise privacy.epsilon (it is {settings.get('privacy', {}).get('epsilon')}), or find more clients"
    what = "Take another server.learning_rate, or more privacy.rounds"
    if measure == "r2":
        what = "State data.label_range and take recipe = 'tables', or lower server.learning_rate or local.learning_rate"
    elif settings.get("features", {}).get("name", "none") == "none":
        what = "Take a recipe (recipe = 'tables', 'images' or 'text'), another server.learning_rate"
    return f"{what}; or {more}."
