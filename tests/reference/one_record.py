"""The slow, obvious twin of record-level training: one record at a time, a plain torch loop."""

import copy
import math

import torch
from torch import Tensor

from incrowd._random import Stream
from incrowd.learning.dpsgd.engine import Records, StepNoise, poisson_batches
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent
from tests.reference.one_client import outputs


def gradient(module: torch.nn.Module, loss: Loss, records: Records, row: int) -> Tensor:
    """The gradient of one record's loss, as one vector."""
    module.zero_grad()
    found = outputs(module, records.features, torch.tensor([row]), records.scale, records.offset)
    loss.value(found, records.labels[row : row + 1]).backward()  # type: ignore[no-untyped-call]  # torch says no types
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


def trained(
    model: Model,
    weights: Tensor,
    records: Records,
    training: RecordTraining,
    *,
    descent: Descent,
    loss: Loss,
    noise: StepNoise,
    batches: Stream,
) -> Tensor:
    """The weights after a round."""
    module = copy.deepcopy(model.module)
    ours = [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.nn.utils.vector_to_parameters(weights.clone(), ours)  # it makes views
    optimizer = torch.optim.SGD(
        ours, lr=descent.learning_rate, momentum=descent.momentum, weight_decay=descent.weight_decay
    )
    for batch in poisson_batches(len(records), training, batches=batches):
        total = torch.zeros(model.size, dtype=torch.float64)
        for row in batch.tolist():
            one = gradient(module, loss, records, row).double()
            length = float(one.norm())
            if math.isfinite(length):
                total += one * min(1.0, training.clip_norm / max(length, 1e-300))
        mean = (noise(total) / training.expected_batch).float()
        places = mean.split_with_sizes(list(model.layout.sizes))
        for parameter, place in zip(ours, places, strict=True):
            parameter.grad = place.view(parameter.shape).clone()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in ours])
