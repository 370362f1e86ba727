"""Federated algorithms: pairs of functions over a state of plain arrays, and evaluation."""

from incrowd.algorithms.clients import ClientCohort
from incrowd.algorithms.fedavg import Diagnostics, FedAvg, RoundReport, SiloStatus, State, Watch
from incrowd.algorithms.metrics import Score, evaluate, score
from incrowd.algorithms.silos import Answer, RecordCohort, Silo, SiloCohort
from incrowd.privacy.paid import RecordRun

__all__ = [
    "Answer",
    "ClientCohort",
    "Diagnostics",
    "FedAvg",
    "RecordCohort",
    "RecordRun",
    "RoundReport",
    "Score",
    "Silo",
    "SiloCohort",
    "SiloStatus",
    "State",
    "Watch",
    "evaluate",
    "score",
]
