"""The promise before anything is spent: participants, rounds, bounds and noise."""

from typing import TYPE_CHECKING

from incrowd._lazy import lazily

if TYPE_CHECKING:
    from incrowd.privacy.plan.plan import NoiseBy
    from incrowd.privacy.plan.planner import signal
    from incrowd.privacy.plan.sampling import Cyclic, FixedSize, Step, growing

__all__ = ["Cyclic", "FixedSize", "NoiseBy", "Step", "growing", "signal"]

__getattr__ = lazily(
    __name__,
    {
        "incrowd.privacy.plan.plan": ("NoiseBy",),
        "incrowd.privacy.plan.planner": ("signal",),
        "incrowd.privacy.plan.sampling": ("Cyclic", "FixedSize", "Step", "growing"),
    },
)
