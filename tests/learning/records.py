"""What a single record adds to a sum, whoever else is in the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from incrowd.learning.gradients.sums import RecordGradients
from incrowd.learning.records import Reader, Records


def one_of(gradients: RecordGradients, records: Records, batch: Sequence[int], one: int) -> tuple[float, Tensor]:
    """The norm of a record's gradient, and the sum of a batch in which it alone is not left out."""
    norm = 0.0
    gradients.begin(len(batch))
    for begin in range(0, len(batch), gradients.rows):
        rows = torch.tensor(batch[begin : begin + gradients.rows])
        norms = gradients.norms(*Reader(records, len(rows)).take(rows))
        gradients.add((rows == one).double())
        norm += float(norms[(rows == one).numpy()].sum())
    return norm, gradients.total.clone()
