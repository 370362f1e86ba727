"""The ways to train a client, each in a file of its own: delete it, and its line here, and training is only slower.

| path         | takes                                                                     |
| ------------ | ------------------------------------------------------------------------- |
| `ahead`      | models that begin with frozen layers: these once, the rest another way    |
| `together`   | on an accelerator, any module that torch's `vmap` takes: many side by side |
| `compiled`   | stacks of Linear layers that are small, or whose examples are mostly zero |
| `fused`      | stacks of Linear layers, LayerNorm, GELU and the like between them        |
| `convolved`  | stacks of convolutions with pooling, and Linear layers on top             |
| `whole_step` | any module that torch can compile, where the run is long enough for that  |
| `direct`     | a Sequential with large Linear layers, in plain steps                     |
| `autograd`   | any module: the twin of all others, and the one that may not go           |
"""

from incrowd.learning.paths import ahead, autograd, compiled, convolved, direct, fused, together, whole_step
from incrowd.learning.paths.path import MakePath

WHOLE: tuple[MakePath, ...] = (
    together.make,
    compiled.make,
    fused.make,
    convolved.make,
    whole_step.make,
    direct.make,
    autograd.make,
)
"""Those that train the whole of a model."""

PATHS: tuple[MakePath, ...] = (
    ahead.before(WHOLE),
    *WHOLE,
)
"""Fastest first: a client goes the first way that takes it."""
