"""Rounds: what a server and its clients do together, and what it says about itself."""

from incrowd.federated.class_sums import class_sums, nearest_mean
from incrowd.federated.diagnostics import Diagnostics
from incrowd.federated.evaluate import Score, score
from incrowd.federated.fedavg import FedAvg, RoundReport, State
from incrowd.federated.server import ServerStep

__all__ = [
    "Diagnostics",
    "FedAvg",
    "RoundReport",
    "Score",
    "ServerStep",
    "State",
    "class_sums",
    "nearest_mean",
    "score",
]
