"""Beyond the paper: at the same epsilon, with the same devices and as many updates, more is learned.

What a device does with its own gradient and what a server does with updates
costs no privacy: clip and noise change together, and averages are post-processing. The settings were chosen on 10,000
training examples that were held out, at epsilon = log 3 and k = 10, never on test examples.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from papers.ddml.study import Case, Study

EPSILONS = (math.log(3), math.log(16))


def ladder(epsilon: float, *, instances: int = 10) -> list[Case]:
    """The settings from the paper's to the best."""
    paper = Case(label="the paper's", epsilon=epsilon, instances=instances)
    smaller = replace(paper, label="smaller clip", clip=0.02)
    longer = replace(smaller, label="and longer steps", learning_rate=0.03)
    tail = replace(longer, label="and the last half averaged, longer steps", learning_rate=0.06, tail=0.5)
    decay = replace(longer, label="or steps and noise that decay", learning_rate=0.06, decay=1.0)
    single = replace(longer, label="but one example at a time, no mini-batch", examples=1)
    same = replace(decay, label="and the drawn instance replaced", strategy="same instance")
    merged = replace(
        tail,
        label="or averaged with what an update replaces",
        strategy="draw and discard, averaged",
        learning_rate=0.2,
        tail=0.25,
    )
    return [paper, smaller, longer, single, tail, decay, same, merged]


def whole_model(epsilon: float, *, instances: int = 10) -> Case:
    """Epsilon for all weights together, which is what a person would want: the L1 norm of the gradient is bounded."""
    return Case(
        label="the whole model private (L1 norm)",
        epsilon=epsilon,
        instances=instances,
        clip=20.0,
        learning_rate=1e-4,
        strategy="draw and discard, averaged",
        tail=0.5,
        whole=True,
    )


def best(study: Study, *, epsilons: Sequence[float] = EPSILONS, instances: int = 10) -> list[dict[str, Any]]:
    """A row for each epsilon and setting: its curve, and what it gains over the paper's setting."""
    rows = []
    for epsilon in epsilons:
        study.say(f"epsilon = {epsilon:.4g}")
        cases = [*ladder(epsilon, instances=instances), whole_model(epsilon, instances=instances)]
        curves = study.curves(cases)
        base = curves[0]["final_accuracy"]
        rows += [{**curve, "gain": curve["final_accuracy"] - base} for curve in curves]
    return rows
