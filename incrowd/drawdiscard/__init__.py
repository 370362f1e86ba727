"""Learning from devices that trust nobody: each draws a model, updates it with noise of its own, and sends it back."""

from incrowd.drawdiscard.desk import Drawn, Outcome, Reason, ServerLike
from incrowd.drawdiscard.device import Device, Fit
from incrowd.drawdiscard.glm import LOGISTIC, MULTINOMIAL, Glm
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.pool import HISTORY, LARGEST, Instance, Picks, Pool, stable_variance
from incrowd.drawdiscard.rehearsal import Rehearsal
from incrowd.drawdiscard.server import Predictor, Server
from incrowd.drawdiscard.simulation import (
    Coins,
    Genealogy,
    GlmGradients,
    Updates,
    accept_one_in,
    batch_updates,
    draw_and_discard,
    same_instance,
    seeded_noise,
    simulate,
    split_among_devices,
    with_intercept,
)
from incrowd.drawdiscard.spam import DirectionTest, ResidualTest
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.texts import part_of

__all__ = [
    "HISTORY",
    "LARGEST",
    "LOGISTIC",
    "MULTINOMIAL",
    "Coins",
    "Device",
    "DirectionTest",
    "Drawn",
    "Fit",
    "Genealogy",
    "Glm",
    "GlmGradients",
    "Instance",
    "Outcome",
    "Picks",
    "Policy",
    "Pool",
    "Predictor",
    "Reason",
    "Rehearsal",
    "ResidualTest",
    "Server",
    "ServerLike",
    "Specification",
    "Updates",
    "accept_one_in",
    "batch_updates",
    "draw_and_discard",
    "part_of",
    "same_instance",
    "seeded_noise",
    "simulate",
    "split_among_devices",
    "stable_variance",
    "with_intercept",
]
