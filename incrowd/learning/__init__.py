"""Models, local training, and the engine that trains a cohort."""

from incrowd.learning.chunk import Chunk
from incrowd.learning.cohort import Cohort
from incrowd.learning.engine import CohortEngine, Execution
from incrowd.learning.local import LocalTraining
from incrowd.learning.lora import lora, merged
from incrowd.learning.losses import ABSOLUTE, CROSS_ENTROPY, HUBER, LOGISTIC, LOSSES, POISSON, SQUARED, Loss, as_loss
from incrowd.learning.models import Model, linear, mlp, small_cnn
from incrowd.learning.store import ClientTensors

__all__ = [
    "ABSOLUTE",
    "CROSS_ENTROPY",
    "HUBER",
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
    "as_loss",
    "linear",
    "lora",
    "merged",
    "mlp",
    "small_cnn",
]
