"""Rounds: what a server and its clients do together, and what it reports."""

from incrowd.federated.diagnostics import Diagnostics, Watch
from incrowd.federated.evaluate import Score, evaluate, score
from incrowd.federated.fedavg import FedAvg, RoundReport, State
from incrowd.federated.silo import Answer, Silo
from incrowd.federated.silo_fedavg import SiloFedAvg, SiloReport, Standing
from incrowd.privacy.records import RecordRun

__all__ = [
    "Answer",
    "Diagnostics",
    "FedAvg",
    "RecordRun",
    "RoundReport",
    "Score",
    "Silo",
    "SiloFedAvg",
    "SiloReport",
    "Standing",
    "State",
    "Watch",
    "evaluate",
    "score",
]
