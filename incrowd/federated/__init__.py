"""Rounds: what a server and its clients do together, and what it says about itself."""

from incrowd.federated.class_sums import class_sums, nearest_mean
from incrowd.federated.diagnostics import Diagnostics
from incrowd.federated.evaluate import Score, evaluate, score
from incrowd.federated.fedavg import FedAvg, RoundReport, State
from incrowd.federated.server import ServerStep
from incrowd.federated.silo import Answer, Silo
from incrowd.federated.silo_fedavg import SiloFedAvg, SiloReport, Standing
from incrowd.privacy.permit import Account
from incrowd.privacy.plan.silo_plan import SiloPlan

__all__ = [
    "Account",
    "Answer",
    "Diagnostics",
    "FedAvg",
    "RoundReport",
    "Score",
    "ServerStep",
    "Silo",
    "SiloFedAvg",
    "SiloPlan",
    "SiloReport",
    "Standing",
    "State",
    "class_sums",
    "evaluate",
    "nearest_mean",
    "score",
]
