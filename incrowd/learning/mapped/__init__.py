"""Layers written in another way, for many clients or records in the same operations (torch's `vmap`) on an accelerator.

| file      | what                                                    |
| --------- | ------------------------------------------------------- |
| `windows` | a convolution as the product of copied windows          |
| `lookup`  | an embedding as the product of single ones and a table  |
"""

from torch import nn

from incrowd.learning.compiling.unrolled import unroll
from incrowd.learning.mapped.lookup import look_up_by_products
from incrowd.learning.mapped.windows import convolve_windows


def rewrite(module: nn.Module) -> None:
    """Have a module, which is a copy of our own, computed in ways that suit many on an accelerator."""
    unroll(module)
    convolve_windows(module)
    look_up_by_products(module)
