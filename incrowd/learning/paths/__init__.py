"""The ways to train a client, each in a file of its own: delete it, and its line here, and training is only slower.

| path         | takes                                                                     |
| ------------ | ------------------------------------------------------------------------- |
| `ahead`      | models that begin with frozen layers: these once, the rest another way    |
| `together`   | on an accelerator, any module that torch's `vmap` takes: many side by side |
| `fast`       | stacks of Linear and convolution layers                                   |
| `whole_step` | any module that torch can compile, where the run is long enough for that  |
| `autograd`   | any module: the twin of all others, and the one that may not go           |
"""

from incrowd.learning.paths import ahead, autograd, fast, together, whole_step
from incrowd.learning.paths.path import MakePath

WHOLE: tuple[MakePath, ...] = (
    together.make,
    fast.make,
    whole_step.make,
    autograd.make,
)
"""Those that train the whole of a model."""

PATHS: tuple[MakePath, ...] = (
    ahead.before(WHOLE),
    *WHOLE,
)
"""Fastest first: a client goes the first way that takes it."""

BY_AUTOGRAD: tuple[MakePath, ...] = (ahead.before((autograd.make,)), autograd.make)
"""Those that take any local optimizer."""
