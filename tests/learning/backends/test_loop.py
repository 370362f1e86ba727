from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import CohortEngine, Model
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin

LOCAL = Local(learning_rate=0.3, batch_size=4)


class Centred(nn.Module):
    """Subtracts a buffer, which it may change in place, replace, or leave alone."""

    mean: Tensor

    def __init__(self, change: str) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mean", torch.full((FEATURES,), 0.1))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        if self.change == "in place":
            self.mean.add_(x.mean(0))
        elif self.change == "replace":
            self.mean = x.mean(0)
        out: Tensor = self.linear(x - self.mean)
        return out


@pytest.mark.parametrize("change", ["in place", "replace"])
def test_a_module_that_remembers_its_examples_is_refused(change: str) -> None:
    model = Model(Centred(change), fresh=True)
    engine = CohortEngine(model, clients(), LOCAL)
    with pytest.raises(ConfigError, match=r"mean.*carry one client's data to the next"):
        trained(engine, model.weights, [0])


def test_constant_buffers_are_welcome() -> None:
    model = Model(Centred("leave"), fresh=True)
    weights = model.initial(RANDOMNESS)
    assert_close(
        trained(CohortEngine(model, clients(), LOCAL), weights, range(4)),
        twin(model, clients(), LOCAL, weights, range(4)),
    )


def test_parameters_that_the_outputs_do_not_use_stay() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.ones(3))
            self.linear = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x)
            return out

    model = Model(Idle(), fresh=True)
    found = trained(CohortEngine(model, clients(), LOCAL), model.weights, [3])[3]
    assert (found[:3] == 0).all()
    assert (found[3:] != 0).any()


@pytest.mark.parametrize("changed", [{}, {"weight_decay": 0.1, "proximal": 0.2}, {"batch_size": None, "epochs": 3}])
@pytest.mark.parametrize("frozen", [False, True])
def test_adam_is_torchs(changed: dict[str, Any], frozen: bool) -> None:
    layers = [nn.Linear(FEATURES, 9), nn.Tanh(), nn.Linear(9, CLASSES)]
    model = Model(nn.Sequential(*layers), fresh=True)
    if frozen:
        layers[0].requires_grad_(requires_grad=False)
        model = Model(nn.Sequential(*layers))
    local, weights = LOCAL.replaced(optimizer="adam", learning_rate=0.01, **changed), model.weights
    found = trained(CohortEngine(model, clients(), local), weights, range(4))
    assert_close(found, twin(model, clients(), local, weights, range(4)))
    sgd = twin(model, clients(), local.replaced(optimizer="sgd"), weights, [3])
    assert not np.allclose(found[3], sgd[3])
    with pytest.raises(ConfigError, match="Adam has its own"):
        local.replaced(momentum=0.9)
