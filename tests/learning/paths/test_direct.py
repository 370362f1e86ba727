from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from incrowd import Local
from incrowd.learning import CohortEngine, Model, small_cnn
from incrowd.learning.paths.direct import DirectSteps
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin

WIDE = 2**15 // FEATURES + 1  # a Linear from the features to so many units is large
LOCAL = Local(learning_rate=0.05, batch_size=4)


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


class Shared(Own):
    """A large layer whose inputs have gradients, used once, next to others that use the same inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        out: Tensor = self.small(torch.tanh(self.large(y))) + self.back(y)
        return out


class Chained(Shared):
    """A large layer that is used twice, the second time after itself."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.large(torch.tanh(self.first(x))))
        out: Tensor = self.small(torch.tanh(self.large(y[:, :FEATURES])))
        return out


class Rows(Own):
    def forward(self, x: Tensor) -> Tensor:
        several = torch.stack([x, x.flip(1), x.square()], 1)
        out: Tensor = self.small(torch.relu(self.large(several))).mean(1)
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


class Penalised(Own):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.small(torch.tanh(self.large(x))) + 1e-6 * self.large.bias.square().sum()
        return out


class Derived(Own):
    """Its outputs contain a derivative by its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            energy = torch.tanh(self.large(x)).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        out: Tensor = self.back(force)
        return out


def first() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDE), nn.LayerNorm(WIDE), nn.Softplus(), nn.Linear(WIDE, CLASSES))


def later() -> nn.Module:
    first = nn.Sequential(nn.Linear(FEATURES, 40, bias=False), nn.Softplus())
    return nn.Sequential(first, nn.Linear(40, 900, bias=False), nn.Softplus(), nn.Linear(900, CLASSES))


def first_and_later() -> nn.Module:
    both = nn.Linear(FEATURES, WIDE), nn.Softplus(), nn.Linear(WIDE, 30), nn.Softplus()
    return nn.Sequential(*both, nn.Linear(30, CLASSES, bias=False))


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDE), nn.ReLU(inplace=True), nn.Linear(WIDE, CLASSES), nn.Softplus())


def own_between() -> nn.Module:
    class Noted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x)

    return nn.Sequential(nn.Linear(FEATURES, WIDE), Noted(), nn.Linear(WIDE, CLASSES))


def watched() -> nn.Module:
    large = nn.Linear(FEATURES, WIDE)
    large.register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)
    return nn.Sequential(large, nn.Softplus(), nn.Linear(WIDE, CLASSES))


@pytest.mark.parametrize(
    "module",
    [
        *(Own, Twice, Shared, Chained, Rows, Sometimes, Tied, Penalised, Derived),
        *(first, later, first_and_later, in_place, own_between, watched),
    ],
    ids=lambda m: m.__name__,
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_large_layers_learn_what_the_slow_twin_learns(module: type[nn.Module], momentum: float) -> None:
    model, data = Model(module(), fresh=True), clients([12, 7, 30, 5])
    local = Local(learning_rate=0.05, batch_size=4, momentum=momentum)
    weights = model.initial(RANDOMNESS)
    found = trained(CohortEngine(model, data, local), weights, range(4))
    assert_close(found, twin(model, data, local, weights, range(4)))


@pytest.mark.parametrize(
    ("module", "without"),
    [
        (first, 2),
        (later, 1),
        (first_and_later, 4),
        (lambda: small_cnn().module, 2),
        (Own, 0),
        (in_place, 0),
        (own_between, 0),
        (watched, 0),
    ],
    ids=["first", "later", "both", "small cnn", "own", "in place", "own between", "watched"],
)
def test_large_layers_that_a_sequential_calls_have_no_gradients(module: Callable[[], nn.Module], without: int) -> None:
    one = module()
    steps = DirectSteps(one, LOCAL)
    assert len(steps.others) == len(list(one.parameters())) - without


def test_small_layers_and_layers_of_the_users_own_are_left_alone() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    hooked = nn.Linear(FEATURES, WIDE)
    hooked.weight.register_hook(lambda gradient: 2 * gradient)  # type: ignore[no-untyped-call]  # torch does not say its types
    for layer in (nn.Linear(FEATURES, CLASSES), Scaled(FEATURES, WIDE), hooked):
        assert len(DirectSteps(nn.Sequential(layer), LOCAL).others) == 2
