"""The slow, obvious twin of record-level training: one record at a time, a plain torch loop."""

import copy
import math

import torch
from torch import Tensor

from incrowd._random import Stream
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.learning.records import Descent, Reader, Records, StepNoise, poisson_batches
from incrowd.privacy.mechanism.steps import RecordTraining


def gradient(module: torch.nn.Module, loss: Loss, features: Tensor, label: Tensor) -> Tensor:
    """The gradient of one record's loss, as one vector."""
    module.zero_grad()
    value = loss.value(module(features[None]), label[None])
    value.backward()  # type: ignore[no-untyped-call]  # torch does not say its types
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
    torch.nn.utils.vector_to_parameters(weights.clone(), module.parameters())  # it makes views
    optimizer = torch.optim.SGD(
        module.parameters(), lr=descent.learning_rate, momentum=descent.momentum, weight_decay=descent.weight_decay
    )
    features, labels = Reader(records, len(records)).take(torch.arange(len(records)))
    for batch in poisson_batches(len(records), training, batches=batches):
        total = torch.zeros(model.size, dtype=torch.float64)
        for row in batch.tolist():
            one = gradient(module, loss, features[row], labels[row]).double()
            length = float(one.norm())
            if math.isfinite(length):
                total += one * min(1.0, training.clip_norm / max(length, 1e-300))
        mean = (noise(total) / training.expected_batch).float()
        places = mean.split_with_sizes(list(model.layout.sizes))
        for parameter, place in zip(module.parameters(), places, strict=True):
            parameter.grad = place.view(parameter.shape).clone()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
