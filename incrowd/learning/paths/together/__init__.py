"""The path for accelerators: many clients take their steps in the same operations, each in matrices of its own.

There, telling the machine what to do takes longer than doing it for one client. So torch's `vmap` makes one step of a
client the step of hundreds, and what the accelerator was told once it repeats by itself, step after step: see
`incrowd.learning.replay`.

| file       | what                                                                     |
| ---------- | ------------------------------------------------------------------------ |
| `step`     | a step of many clients, for any module that `vmap` can take              |
| `plan`     | whose batches are how wide, and which examples they have                 |
| `training` | the path                                                                 |
"""

from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.paths.together import training


def make(task: TrainingTask) -> TrainingPath | None:
    """The path, on an accelerator, where `vmap` takes the module; see `training.make`."""
    return training.make(task) if task.on_accelerator else None
