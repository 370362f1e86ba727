"""The path for any module whose step torch can compile as a whole: forward, backward and update in one function.

A compilation takes seconds, so it is chosen only where the run is long enough to win them back; see
`incrowd.learning.compiling.worth`. A step is in `step`, the path in `training`.
"""

from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.paths.whole_step import training


def make(task: TrainingTask) -> TrainingPath | None:
    """The path, where compiling pays and torch can; see `training.make`."""
    return training.make(task)
