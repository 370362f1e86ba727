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
