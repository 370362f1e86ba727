"""The compiled backend: stacks of Linear and convolution layers, each client in one call of compiled code."""

from incrowd.learning.backends.backend import Backend, Task
from incrowd.learning.backends.fast.memory import layers_of


def make(task: Task) -> Backend | None:
    """The backend, if the model is such a stack and there is a BLAS. It works on processors only."""
    if task.on_accelerator or not task.by_sgd:
        return None
    stack = layers_of(task.model.module, task.loss, task.data.features, task.data.labels)
    if stack is None:
        return None
    from incrowd.learning.backends.fast.rows import ADDRESS  # numba takes a while to start
    from incrowd.learning.backends.fast.training import Fast

    return None if ADDRESS is None else Fast(task, stack)
