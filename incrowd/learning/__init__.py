"""Models, local training, and the engine that trains a cohort."""

from incrowd.learning.chunk import Chunk
from incrowd.learning.cohort import Cohort
from incrowd.learning.engine import CohortEngine, Execution
from incrowd.learning.local import LocalTraining
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, LOSSES, POISSON, SQUARED, Loss
from incrowd.learning.models import Model, linear, mlp, small_cnn
from incrowd.learning.store import ClientTensors

__all__ = [
    "CROSS_ENTROPY",
    "LOGISTIC",
    "LOSSES",
    "POISSON",
    "SQUARED",
    "Chunk",
    "ClientTensors",
    "Cohort",
    "CohortEngine",
    "Execution",
    "LocalTraining",
    "Loss",
    "Model",
    "linear",
    "mlp",
    "small_cnn",
]
