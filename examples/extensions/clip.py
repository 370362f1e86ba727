"""A clip of your own: a smooth one, which shortens long contributions most and has no threshold.

Run: python examples/extensions/clip.py
"""

import numpy as np

import incrowd
from incrowd.testing import check_clip
from incrowd.types import ThirdPartyClip, register


def smooth(rows: np.ndarray, clip_norm: float) -> np.ndarray:
    """Scale a contribution of norm n to the norm n C / (n + C), which is below C."""
    norms: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * (clip_norm / (norms + clip_norm))


check_clip(smooth)
register("clips", "smooth", smooth)

config = incrowd.PlanConfig(
    members=100, schedule=incrowd.constant(rounds=1, cohort=20), clip=ThirdPartyClip(name="smooth", clip_norm=1.0)
)
plan = config.calibrate(incrowd.Budget(epsilon=2, delta=1e-3))
ledger = incrowd.Ledger.in_memory(budget=plan.budget, relation=plan.relation)
run = incrowd.PrivateRun(plan, ledger=ledger, randomness=incrowd.SeededRandomness(seed=1), size=3)
opened, cohort = run.round(0), run.cohort(0)
opened.add(np.ones((len(cohort), 3)), clients=cohort)
print("mean", opened.release().mean)
print(run.statement().text())
