"""Modules as people write them down, followed to the layers that they go through."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from incrowd import Local
from incrowd.learning import ClientTensors, CohortEngine, Model
from incrowd.learning.chain import chained
from tests.learning.cohorts import RANDOMNESS, assert_close, trained, twin

Forward = Callable[["Written", Tensor], Tensor]


class Written(nn.Module):
    """A class with a `forward` of its own, over pictures of 10 x 10."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.hidden, self.output = nn.Linear(6, 5), nn.Linear(5, 4)
        self.pool, self.calls, self.own_forward = nn.MaxPool2d(2), 0, forward

    def forward(self, x: Tensor) -> Tensor:
        return self.own_forward(self, x)


def _tensor(outputs: Any) -> Tensor:
    found: Tensor = outputs  # what a part gives has no type
    return found


def _functional(own: Written, x: Tensor) -> Tensor:
    x = functional.max_pool2d(functional.relu(own.first(x.unsqueeze(1))), 2)
    x = torch.max_pool2d(torch.relu(own.second(x)), 2, 2)
    return _tensor(own.output(torch.tanh(own.hidden(torch.flatten(x, 1)))))


def _methods(own: Written, x: Tensor) -> Tensor:
    x = own.pool(own.first(x.view(-1, 1, 10, 10)).relu())
    x = functional.max_pool2d(own.second(x).relu_(), kernel_size=2, stride=2)
    return _tensor(own.output(own.hidden(x.view(x.size(0), -1)).sigmoid()))


def _shapes(own: Written, x: Tensor) -> Tensor:
    x = own.first(x.reshape(x.shape[0], 1, 10, 10)).relu()
    x = functional.max_pool2d(x, (2, 2))
    x = functional.max_pool2d(functional.relu(own.second(x), inplace=True), 2)
    return _tensor(own.output(functional.tanh(own.hidden(x.reshape((-1, 6))))))


WRITTEN: dict[str, Forward] = {"functional": _functional, "methods": _methods, "shapes": _shapes}


def clients(*shape: int) -> ClientTensors:
    generator = np.random.default_rng(1)
    return ClientTensors(
        features=torch.from_numpy(generator.normal(size=(24, *shape)).astype(np.float32)),
        labels=torch.from_numpy(generator.integers(0, 4, 24)),
        offsets=np.array([0, 9, 24]),
        indices=generator.permutation(24),
    )


LOCAL = Local(learning_rate=0.2, batch_size=6)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_class_goes_the_way_of_its_layers_and_learns_the_same(name: str) -> None:
    data, model = clients(10, 10), Model(Written(WRITTEN[name]), fresh=True)
    engine = CohortEngine(model, data, LOCAL)
    assert [type(path).__name__ for path in engine.backends] == ["Fast"]
    weights = model.initial(RANDOMNESS)
    assert_close(trained(engine, weights, [0, 1]), twin(model, data, LOCAL, weights, [0, 1]))


class Perceptron(nn.Module):
    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__()
        if backwards:
            self.second = nn.Linear(7, 4)
        self.body = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(100, 7)))
        if not backwards:
            self.second = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.body(x)))
        return out


def _counts(own: Written, x: Tensor) -> Tensor:
    own.calls += 1
    return _functional(own, x)


def _twice(own: Written, x: Tensor) -> Tensor:
    return _functional(own, x) * 2


def _around(own: Written, x: Tensor) -> Tensor:
    x = own.pool(own.first(x.unsqueeze(1)))
    return _tensor(own.output(own.hidden(functional.adaptive_max_pool2d(own.second(x) + own.second(x), 1).flatten(1))))


def _looks(own: Written, x: Tensor) -> Tensor:
    return _functional(own, x) if float(x.abs().sum()) >= 0 else x


def _otherwise_when_followed(own: Written, x: Tensor) -> Tensor:
    hidden = own.hidden.forward if type(x) is Tensor else own.hidden
    x = functional.max_pool2d(functional.relu(own.first(x.unsqueeze(1))), 2)
    x = torch.max_pool2d(torch.relu(own.second(x)), 2, 2).flatten(1)
    return _tensor(own.output(hidden(x) if type(x) is Tensor else torch.tanh(hidden(x))))


def _margins(own: Written, x: Tensor) -> Tensor:
    x = functional.max_pool2d(own.first(x.unsqueeze(1)), 2, padding=1)
    x = functional.adaptive_max_pool2d(own.second(x), 1)
    return _tensor(own.output(own.hidden(x.flatten(1))))


def _turned(own: Written, x: Tensor) -> Tensor:
    return _functional(own, x.view(10, -1, 10))


def _joined(own: Written, x: Tensor) -> Tensor:
    return _functional(own, x.flatten(0, 1).view(-1, 10, 10))


OTHERS: dict[str, Forward] = {
    "counts": _counts,
    "something more": _twice,
    "not one line": _around,
    "looks at numbers": _looks,
    "otherwise when followed": _otherwise_when_followed,
    "margins": _margins,
    "examples elsewhere": _turned,
    "another flatten": _joined,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_anything_else_stays_what_it_is(name: str) -> None:
    assert chained(Written(OTHERS[name]), (10, 10)) is None


def test_layers_keep_the_order_of_the_parameters() -> None:
    assert chained(Perceptron(backwards=True), (10, 10)) is None
    assert chained(Perceptron(), (10, 10)) is not None


def test_hooks_frozen_and_tied_parts_and_others_stay_what_they_are() -> None:
    hooked, frozen, tied, large = (Perceptron() for _ in range(4))
    hooked.second.register_forward_hook(lambda *_: None)
    frozen.second.requires_grad_(False)
    tied.third = tied.second
    large.extra = nn.LSTM(3, 3)
    patched = Perceptron()
    patched.second.__dict__["forward"] = lambda x: x[:, :4]  # as somebody might
    patched_whole = nn.Sequential(nn.Linear(10, 4))
    patched_whole.__dict__["forward"] = lambda x: -patched_whole[0](x)
    for module in (hooked, frozen, tied, large, patched, patched_whole):
        assert chained(module, (10, 10)) is None


def anew(layer: nn.Module) -> None:
    """Put the weight in anew, as torch does when it takes away a parametrization: it comes after the bias then."""
    weight = layer.weight
    del layer.weight
    layer.weight = weight


def _more(module: nn.Module) -> None:
    module.register_parameter("own", nn.Parameter(torch.ones(3)))


CHANGES: dict[str, Callable[[nn.Sequential], None]] = {
    "a linear weight anew": lambda layers: anew(layers[0]),
    "the second weight anew": lambda layers: anew(layers[1]),
    "the last weight anew": lambda layers: anew(layers[3]),
    "a parameter of its own": _more,
    "one of a layer's own": lambda layers: _more(layers[0]),
    "one of a bend's own": lambda layers: _more(layers[2]),
}


def stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 70), nn.Linear(70, 70), nn.Tanh(), nn.Linear(70, 4))


@pytest.mark.parametrize("name", CHANGES)
def test_parameters_in_another_order_or_of_another_s_are_learnt_as_they_are(name: str) -> None:
    module, data = stack(), clients(10)
    assert chained(module, (10,)) is module
    CHANGES[name](module)
    assert chained(module, (10,)) is None
    model = Model(module)
    found = trained(CohortEngine(model, data, LOCAL), model.weights, [0, 1])
    assert_close(found, twin(model, data, LOCAL, model.weights, [0, 1]))
