"""The promise before anything is spent: participants, rounds, bounds and noise."""

from typing import TYPE_CHECKING

from incrowd._lazy import lazily

if TYPE_CHECKING:
    from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig
    from incrowd.privacy.plan.planner import Question, signal
    from incrowd.privacy.plan.sampling import (
        Cyclic,
        Everyone,
        FixedSize,
        Poisson,
        Schedule,
        Step,
        constant,
        growing,
        listed,
    )

__all__ = [
    "Cyclic",
    "Everyone",
    "FixedSize",
    "NoiseBy",
    "Plan",
    "PlanConfig",
    "Poisson",
    "Question",
    "Schedule",
    "Step",
    "constant",
    "growing",
    "listed",
    "signal",
]

__getattr__ = lazily(
    __name__,
    {
        "incrowd.privacy.plan.plan": ("NoiseBy", "Plan", "PlanConfig"),
        "incrowd.privacy.plan.planner": ("Question", "signal"),
        "incrowd.privacy.plan.sampling": (
            "Cyclic",
            "Everyone",
            "FixedSize",
            "Poisson",
            "Schedule",
            "Step",
            "constant",
            "growing",
            "listed",
        ),
    },
)
