"""Learning from devices that trust nobody: each draws a model, updates it with noise of its own, and sends it back."""

from incrowd.drawdiscard.device import Device, Fit
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.predictor import Predictor
from incrowd.drawdiscard.server import Drawn, Outcome, Reason, Server, ServerLike
from incrowd.drawdiscard.specification import Specification

__all__ = [
    "Device",
    "Drawn",
    "Fit",
    "Outcome",
    "Policy",
    "Predictor",
    "Reason",
    "Server",
    "ServerLike",
    "Specification",
]
