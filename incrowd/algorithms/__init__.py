"""Rounds: what a server and its clients do together, and what it reports."""

from incrowd.algorithms.diagnostics import Diagnostics, Watch
from incrowd.algorithms.evaluate import Score, evaluate, score
from incrowd.algorithms.fedavg import FedAvg, RoundReport, State
from incrowd.algorithms.silo import Answer, Silo
from incrowd.algorithms.silo_fedavg import SiloFedAvg, SiloReport, Standing
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
