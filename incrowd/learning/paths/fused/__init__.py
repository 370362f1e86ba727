"""The path for stacks of Linear layers, with or without LayerNorm, GELU and SiLU between them: their steps, in place,
without autograd.

Why this is fast on a CPU (each was measured): the gradient of a weight is accumulated straight into the weight by the
matrix product that computes it, so that there is neither a gradient nor an optimiser pass; and four pieces of exact
algebra:

- A client's weight of a feature that is zero in all of its examples does not change, so such features are left out.
- A feature that is another constant in all of them acts as the bias does, so that such features are one with the bias:
  their weights change by the bias's change times the constant.
- What a feature usually is, where only few of the examples have another number, is one with the bias, too. Of what
  these have beyond it, loops over pairs make the rest.
- The first layer is wide and batches are small. Its update is put off over several batches: with the weights W that a
  block of batches started with, the outputs of batch t are x_t W - rate * x_t (sum over s < t of x_s' d_s), and the
  products x_t x_s' of all batches of the block come from one matrix product.

Where there is little to do, calling torch takes longer than the work: then the last layer is one compiled loop.

| file          | what                                                             |
| ------------- | ---------------------------------------------------------------- |
| `layers`      | a module as a table of such layers                               |
| `loops`       | LayerNorm, GELU, SiLU and a last layer, forth and back, in loops |
| `between`     | what is between two Linear layers, at work                       |
| `last`        | the last layer, at work in one loop                              |
| `linear`      | any layer at work                                                |
| `first`       | the first layer, at work on a client's own features              |
| `first_loops` | loops for it                                                     |
| `rare`        | its part for rare features                                       |
| `changed`     | norms and sums of what it has learnt                             |
| `parameter`   | a parameter and its steps                                        |
| `stack`       | the layers at work                                               |
| `training`    | the path                                                         |
"""

from incrowd.learning.paths.fused.layers import stack_of
from incrowd.learning.paths.fused.training import Fused
from incrowd.learning.paths.path import TrainingTask


def make(task: TrainingTask) -> Fused | None:
    """The path, if the model is such a stack. Edge cases: on a processor only."""
    stack = None if task.on_accelerator else stack_of(task.model.module, task.loss, task.data)
    return None if stack is None else Fused(task, stack)
