"""The slow, obvious twin of the cohort engine: one client at a time, a plain torch loop."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from incrowd._random import Randomness
from incrowd.learning.inputs import ClientTensors, draw_batches
from incrowd.learning.losses import CROSS_ENTROPY, Loss
from incrowd.learning.models import Model
from incrowd.settings import Local


def outputs(module: torch.nn.Module, features: Any, rows: Tensor, scale: float, offset: float) -> Tensor:
    """What a module gives for some rows of its inputs: one, several by name, or several in order."""

    def meant(one: Tensor, *, scaled: bool) -> Tensor:
        if one.dtype in (torch.int64, torch.bool):
            return one[rows]
        return one[rows].float() * scale + offset if scaled else one[rows].float()

    found: Tensor
    if isinstance(features, dict):
        found = module(**{name: meant(one, scaled=one.dtype == torch.uint8) for name, one in features.items()})
    elif isinstance(features, tuple):
        found = module(*(meant(one, scaled=one.dtype == torch.uint8) for one in features))
    else:
        found = module(meant(features, scaled=True))
    return found


def _dropout(p: float, generator: torch.Generator, x: Tensor) -> Tensor:
    kept = torch.empty_like(x).bernoulli_(1 - p, generator=generator)
    return x * kept / (1 - p)


def contribution(
    model: Model,
    weights: Tensor,
    data: ClientTensors,
    local: Local,
    *,
    loss: Loss = CROSS_ENTROPY,
    randomness: Randomness,
    round: int,
    client: int,
) -> Tensor:
    """What one client contributes: its weights after local training minus the server's."""
    module = copy.deepcopy(model.module)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.nn.utils.vector_to_parameters(weights.clone(), trained)  # it makes views
    how: dict[str, Any] = {"lr": local.learning_rate, "weight_decay": local.weight_decay}
    optimizer = (
        torch.optim.Adam(trained, **how)
        if local.optimizer == "adam"
        else torch.optim.SGD(trained, momentum=local.momentum, **how)
    )
    indices = torch.as_tensor(data.examples(client), dtype=torch.int64)
    features = data.features
    labels = data.labels[indices]
    masks = torch.Generator().manual_seed(int(randomness.stream("masks", round, client).bits(1)[0] >> 1))
    for layer in module.modules():
        if type(layer) is torch.nn.Dropout and layer.training:
            layer.forward = partial(_dropout, layer.p, masks)  # type: ignore[method-assign]  # of this copy alone
    batches = draw_batches(len(indices), local, randomness=randomness, round=round, client=client)
    for positions, size in zip(batches.positions, batches.sizes, strict=True):
        chosen = torch.as_tensor(positions[:size])
        error = loss.value(outputs(module, features, indices[chosen], data.scale, data.offset), labels[chosen])
        here = torch.cat([parameter.reshape(-1) for parameter in trained])
        optimizer.zero_grad()
        objective = error + local.proximal / 2 * (here - weights).square().sum()
        objective.backward()  # type: ignore[no-untyped-call]  # torch does not say its types
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained]) - weights
