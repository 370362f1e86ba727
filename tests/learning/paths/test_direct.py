import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from incrowd import Local
from incrowd.learning import CohortEngine, Model
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin

WIDE = 2**15 // FEATURES + 1  # a Linear from the features to so many units is large


class Own(nn.Module):
    """Two layers, the first of them large, used in a way of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(FEATURES, WIDE)
        self.small = nn.Linear(WIDE, CLASSES)
        self.back = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.small(torch.tanh(self.large(x)))
        return out


class Twice(Own):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.small(torch.tanh(self.large(x)) * torch.sigmoid(self.large(-x)))
        return out


class Sometimes(Own):
    """Whether the layer has inputs with gradients, and whether it matters at all, depends on the examples."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 2:
            out: Tensor = self.back(x)
            self.large(x)
            return out
        shifted = x + self.back(x).mean() if x.shape[0] > 2 else x
        later: Tensor = self.small(torch.tanh(self.large(shifted)))
        return later


class Tied(Own):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.back(functional.linear(torch.tanh(self.large(x)), self.large.weight.t()))
        return out


def first() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDE), nn.LayerNorm(WIDE), nn.Softplus(), nn.Linear(WIDE, CLASSES))


def later() -> nn.Module:
    first = nn.Sequential(nn.Linear(FEATURES, 40, bias=False), nn.Softplus())
    return nn.Sequential(first, nn.Linear(40, 900, bias=False), nn.Softplus(), nn.Linear(900, CLASSES))


def first_and_later() -> nn.Module:
    both = nn.Linear(FEATURES, WIDE), nn.Softplus(), nn.Linear(WIDE, 30), nn.Softplus()
    return nn.Sequential(*both, nn.Linear(30, CLASSES, bias=False))


@pytest.mark.parametrize(
    "module",
    [Own, Twice, Sometimes, Tied, first, later, first_and_later],
    ids=lambda m: m.__name__,
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_large_layers_learn_what_the_slow_twin_learns(module: type[nn.Module], momentum: float) -> None:
    model, data = Model(module(), fresh=True), clients([12, 7, 30, 5])
    local = Local(learning_rate=0.05, batch_size=4, momentum=momentum)
    weights = model.initial(RANDOMNESS)
    found = trained(CohortEngine(model, data, local), weights, range(4))
    assert_close(found, twin(model, data, local, weights, range(4)))
