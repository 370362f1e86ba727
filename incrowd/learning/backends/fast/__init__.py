"""The compiled backend: stacks of Linear and convolution layers, each client in one call of compiled code.

| file       | what                                                            |
| ---------- | --------------------------------------------------------------- |
| `layers`   | a module as a table of layers                                   |
| `memory`   | where weights, values and gradients of these layers lie         |
| `kernel`   | the loop over a client's batches, and the first Linear layer    |
| `passes`   | forward and backward passes of all layers                       |
| `pictures` | convolution windows, pooling and normalisation                  |
| `rows`     | loops over rows that LLVM does not vectorize by itself          |
| `blas`     | `sgemm` for compiled code                                       |
| `update`   | a client's update where it was trained: its norm and its sum    |
| `training` | the backend                                                     |
"""

from incrowd.learning.backends.backend import Backend, Task
from incrowd.learning.backends.fast.layers import layers_of


def make(task: Task) -> Backend | None:
    """The backend, if the model is such a stack and there is a BLAS. It works on processors only."""
    stack = None if task.on_accelerator or not task.by_sgd else layers_of(task.model.module, task.loss, task.data)
    if stack is None:
        return None
    from incrowd.learning.backends.fast.blas import ADDRESS  # numba takes a while to start
    from incrowd.learning.backends.fast.training import Fast

    return None if ADDRESS is None else Fast(task, stack)
