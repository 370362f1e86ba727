"""Backends train clients, each in a file of its own: delete it, and its name here, and training is only slower.

The `loop` has to stay: it takes any module and any local algorithm, by autograd, and is the reference.
"""

from incrowd.learning.backends import compiled, fast, loop, vectorized
from incrowd.learning.backends.backend import MakeBackend

BACKENDS: tuple[MakeBackend, ...] = (vectorized.make, fast.make, compiled.make, loop.make)
"""Fastest first: the first backend that takes a client trains it."""
