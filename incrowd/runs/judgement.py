"""How good a model is beside one that has learned nothing, by the measure that suits the labels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

UNEVEN = 1.5
"""From so many times its even share on, the most frequent class makes accuracy tell little."""

ERRORS = 2.0
"""A model has learned something where it is so many standard errors above the baseline."""


def judged(metrics: Mapping[str, Any], *, examples: int, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The measure, its value, its standard error, the baseline, and what to change where the model is no better.

    Labels that are numbers are measured by R², two uneven classes by AUC, more of them by balanced accuracy, others by
    accuracy. Edge cases: metrics that have none of these: None.
    """
    found = _measured(metrics, examples)
    if found is None:
        return None
    measure, value, baseline, std = found
    advice: list[str] = []
    if value - baseline <= ERRORS * std:
        told = f"{_NAMES[measure]} {value:.4f} ± {std:.4f} is no better than {_BASELINES[measure]}, {baseline:.4f}."
        advice = [f"{told} {_remedy(settings, measure)}"]
    return {"measure": measure, "value": value, "baseline": baseline, "std": std, "advice": advice}


_NAMES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auc": "AUC", "r2": "R²"}
_BASELINES = {
    "accuracy": "always saying the most frequent class",
    "balanced_accuracy": "guessing",
    "auc": "guessing",
    "r2": "always saying the mean",
}


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
    """What to change, by name."""
    privacy = settings.get("privacy", {})
    more = f"raise privacy.epsilon (it is {privacy.get('epsilon')}), or find more clients"
    if measure == "r2":
        return (
            "State data.label_range and take recipe = 'tables', or lower server.learning_rate or local.learning_rate; "
            f"or {more}."
        )
    if settings.get("features", {}).get("name", "none") == "none":
        return f"Take a recipe (recipe = 'tables', 'images' or 'text'), another server.learning_rate; or {more}."
    return f"Take another server.learning_rate, or more privacy.rounds; or {more}."
