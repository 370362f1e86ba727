"""Backends train clients, each in a file of its own: delete it, and its line here, and training is only slower.

| backend      | takes                                                                              |
| ------------ | ---------------------------------------------------------------------------------- |
| `vectorized` | any module that `torch.func.vmap` takes, on an accelerator: many clients at a time |
| `fast`       | stacks of Linear and convolution layers, on a CPU                                  |
| `compiled`   | any module that `torch.compile` takes, in runs long enough to pay for it           |
| `loop`       | any module and any local optimizer, by autograd: the reference, which has to stay  |
"""

from incrowd.learning.backends import compiled, fast, loop, vectorized
from incrowd.learning.backends.backend import MakeBackend

BACKENDS: tuple[MakeBackend, ...] = (
    vectorized.make,
    fast.make,
    compiled.make,
    loop.make,
)
"""Fastest first: the first backend that takes a client trains it."""
