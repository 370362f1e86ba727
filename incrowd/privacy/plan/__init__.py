"""What is promised before anything is spent: who takes part, how often, with which noise."""

from typing import TYPE_CHECKING

from incrowd._lazy import lazily

if TYPE_CHECKING:
    from incrowd.privacy.plan.plan import Plan, PlanConfig
    from incrowd.privacy.plan.planner import Question, signal
    from incrowd.privacy.plan.promise import NoiseBy
    from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
    from incrowd.privacy.plan.schedule import Schedule, Step, constant, growing, listed

__all__ = [
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
        "incrowd.privacy.plan.plan": (
            "Plan",
            "PlanConfig",
        ),
        "incrowd.privacy.plan.planner": ("Question", "signal"),
        "incrowd.privacy.plan.promise": ("NoiseBy",),
        "incrowd.privacy.plan.sampling": (
            "Everyone",
            "FixedSize",
            "Poisson",
        ),
        "incrowd.privacy.plan.schedule": (
            "Schedule",
            "Step",
            "constant",
            "growing",
            "listed",
        ),
    },
)
