"""Federated algorithms: pairs of functions over a state of plain arrays, and evaluation."""

from incrowd.algorithms.clients import ClientCohort
from incrowd.algorithms.diagnostics import Diagnostics, Watch
from incrowd.algorithms.fedavg import FedAvg, RoundReport, SiloStatus, State
from incrowd.algorithms.metrics import Score, evaluate, score
from incrowd.algorithms.silos import Answer, RecordCohort, Silo, SiloCohort
from incrowd.privacy.records import RecordRun

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
