"""Models, local training, and the engine that trains a cohort."""

from incrowd.learning.arithmetic import ieee
from incrowd.learning.batches import draw_batches
from incrowd.learning.cohort import EngineCohort
from incrowd.learning.contributions import Contributions
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.noise import FastNoise, GridNoise
from incrowd.learning.dpsgd.records import Records, StepNoise, poisson_batches
from incrowd.learning.engine import CohortEngine
from incrowd.learning.execution import Execution
from incrowd.learning.lora import lora, merged
from incrowd.learning.losses import ABSOLUTE, CROSS_ENTROPY, HUBER, LOGISTIC, LOSSES, POISSON, SQUARED, Loss, as_loss
from incrowd.learning.mean_query import Answer, ClientExamples, MeanQuery
from incrowd.learning.models import Model, linear, mlp, small_cnn
from incrowd.learning.store import ClientTensors
from incrowd.learning.threads import one_thread
from incrowd.settings.descent import Descent

__all__ = [
    "ABSOLUTE",
    "CROSS_ENTROPY",
    "HUBER",
    "LOGISTIC",
    "LOSSES",
    "POISSON",
    "SQUARED",
    "Answer",
    "BatchedRecords",
    "ClientExamples",
    "ClientTensors",
    "CohortEngine",
    "Contributions",
    "Descent",
    "EngineCohort",
    "Execution",
    "FastNoise",
    "GridNoise",
    "Loss",
    "MeanQuery",
    "Model",
    "Records",
    "StepNoise",
    "as_loss",
    "draw_batches",
    "ieee",
    "linear",
    "lora",
    "merged",
    "mlp",
    "one_thread",
    "poisson_batches",
    "small_cnn",
]
