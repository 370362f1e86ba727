"""Models, local training, and the engine that trains a cohort."""

from incrowd.learning.backends import BACKENDS
from incrowd.learning.backends.backend import Backend, ClientRound, Task
from incrowd.learning.contributions import Contributions
from incrowd.learning.dpsgd.engine import BatchedRecords, Records, StepNoise, poisson_batches
from incrowd.learning.engine import CohortEngine, EngineCohort
from incrowd.learning.execution import Execution, ieee, one_thread
from incrowd.learning.inputs import ClientTensors, draw_batches
from incrowd.learning.local_algorithms import descend, mean_gradient
from incrowd.learning.losses import ABSOLUTE, CROSS_ENTROPY, HUBER, LOGISTIC, LOSSES, POISSON, SQUARED, Loss, as_loss
from incrowd.learning.mean_query import Answer, ClientExamples, MeanQuery
from incrowd.learning.models import Model, linear, mlp, small_cnn
from incrowd.settings import Descent
from incrowd.types import ClientAtWork, LocalAlgorithm

__all__ = [
    "ABSOLUTE",
    "BACKENDS",
    "CROSS_ENTROPY",
    "HUBER",
    "LOGISTIC",
    "LOSSES",
    "POISSON",
    "SQUARED",
    "Answer",
    "Backend",
    "BatchedRecords",
    "ClientAtWork",
    "ClientExamples",
    "ClientRound",
    "ClientTensors",
    "CohortEngine",
    "Contributions",
    "Descent",
    "EngineCohort",
    "Execution",
    "LocalAlgorithm",
    "Loss",
    "MeanQuery",
    "Model",
    "Records",
    "StepNoise",
    "Task",
    "as_loss",
    "descend",
    "draw_batches",
    "ieee",
    "linear",
    "mean_gradient",
    "mlp",
    "one_thread",
    "poisson_batches",
    "small_cnn",
]
