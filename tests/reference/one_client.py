"""The slow, obvious twin of the cohort engine: one client at a time, a plain torch loop."""

import copy

import torch
from torch import Tensor

from incrowd._random import Randomness
from incrowd.learning.batches import draw
from incrowd.learning.local import LocalTraining
from incrowd.learning.models import Model
from incrowd.learning.store import ClientTensors


def contribution(
    model: Model,
    weights: Tensor,
    data: ClientTensors,
    local: LocalTraining,
    *,
    randomness: Randomness,
    round: int,
    client: int,
) -> Tensor:
    """What one client contributes: its weights after local training minus the server's."""
    module = copy.deepcopy(model.module)
    torch.nn.utils.vector_to_parameters(weights.clone(), module.parameters())  # it makes views
    optimizer = torch.optim.SGD(
        module.parameters(), lr=local.learning_rate, momentum=local.momentum, weight_decay=local.weight_decay
    )
    indices = torch.as_tensor(data.examples(client), dtype=torch.int64)
    features = data.features[indices].float() * data.scale + data.offset
    labels = data.labels[indices]
    batches = draw(len(indices), local, randomness=randomness, round=round, client=client)
    for positions, size in zip(batches.positions, batches.sizes, strict=True):
        chosen = torch.as_tensor(positions[:size])
        loss = local.loss.value(module(features[chosen]), labels[chosen])
        here = torch.cat([parameter.reshape(-1) for parameter in module.parameters()])
        optimizer.zero_grad()
        objective = loss + local.proximal / 2 * (here - weights).square().sum()
        objective.backward()  # type: ignore[no-untyped-call]  # torch does not say its types
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]) - weights
