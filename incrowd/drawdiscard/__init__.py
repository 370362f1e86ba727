"""Learning from devices that trust nobody: each draws a model, updates it with noise of its own, and sends it back."""

from incrowd.drawdiscard.device import Device, Fit
from incrowd.drawdiscard.fast_gradients import GlmGradients, OwnLayout, split_among_devices, with_intercept
from incrowd.drawdiscard.genealogy import Coins, Genealogy, accept_one_in, draw_and_discard, same_instance
from incrowd.drawdiscard.glm import LOGISTIC, MULTINOMIAL, FlatModel, Glm
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.pool import Picks, Pool, stable_variance
from incrowd.drawdiscard.predictor import Predictor
from incrowd.drawdiscard.server import Drawn, Outcome, Reason, Server, ServerLike
from incrowd.drawdiscard.simulation import Updates, batch_updates, seeded_noise, simulate
from incrowd.drawdiscard.spam import HonestUpdates, SpamTest, spam_threshold
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.strategies import DrawAndDiscard, SameInstance, Strategy

__all__ = [
    "LOGISTIC",
    "MULTINOMIAL",
    "Coins",
    "Device",
    "DrawAndDiscard",
    "Drawn",
    "Fit",
    "FlatModel",
    "Genealogy",
    "Glm",
    "GlmGradients",
    "HonestUpdates",
    "Outcome",
    "OwnLayout",
    "Picks",
    "Policy",
    "Pool",
    "Predictor",
    "Reason",
    "SameInstance",
    "Server",
    "ServerLike",
    "SpamTest",
    "Specification",
    "Strategy",
    "Updates",
    "accept_one_in",
    "batch_updates",
    "draw_and_discard",
    "same_instance",
    "seeded_noise",
    "simulate",
    "spam_threshold",
    "split_among_devices",
    "stable_variance",
    "with_intercept",
]
