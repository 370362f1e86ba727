"""Clipped sums of the gradients of records, one way or another: the fastest that a model allows.

| way            | takes                                                            |
| -------------- | ---------------------------------------------------------------- |
| `ghost`        | stacks of Linear layers: gradients are never formed              |
| `pictures`     | stacks of convolutions with pooling, and Linear layers on top    |
| `side_by_side` | any module that torch's `vmap` can take, compiled where it pays  |
| `one_by_one`   | any module: one record after the other, the twin of all others   |

The loop of steps is in `sums`, the choice in `ways`.
"""
