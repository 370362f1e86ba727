"""Rounds: what a server and its clients do together, and what it reports."""

from incrowd.federated.diagnostics import Diagnostics, Watch
from incrowd.federated.evaluate import Score, evaluate, score
from incrowd.federated.fedavg import FedAvg, RoundReport, State
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
    "Silo",
    "SiloFedAvg",
    "SiloPlan",
    "SiloReport",
    "Standing",
    "State",
    "Watch",
    "evaluate",
    "score",
]
