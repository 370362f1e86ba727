"""The path for convolutions: matrix products of copied windows, compiled loops for all else, and no work on zeros."""

from incrowd.learning.paths.convolved.layers import convolutions_of
from incrowd.learning.paths.path import TrainingPath, TrainingTask


def make(task: TrainingTask) -> TrainingPath | None:
    """The path, if the model is convolutions with Linear layers on top, and nothing but a gradient makes a step."""
    table = None if task.on_accelerator or not task.local.plain else convolutions_of(task)
    if table is None:
        return None
    from incrowd.learning.paths.convolved.training import Convolved  # numba takes a while to start

    return Convolved(task, table)
