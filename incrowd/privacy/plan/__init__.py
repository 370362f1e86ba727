"""What is promised before anything is spent: who takes part, how often, with which noise."""

from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.planner import Question
from incrowd.privacy.plan.promise import Place
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
from incrowd.privacy.plan.schedule import Schedule, Step, constant, growing, listed
from incrowd.privacy.plan.silo_plan import SiloPlan

__all__ = [
    "Everyone",
    "FixedSize",
    "Place",
    "Plan",
    "PlanConfig",
    "Poisson",
    "Question",
    "Schedule",
    "SiloPlan",
    "Step",
    "constant",
    "growing",
    "listed",
]
