"""Many clients in the same operations, as an accelerator trains them: here on a processor, where all of it runs too."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from incrowd import Local
from incrowd.learning import CohortEngine, Execution, Model, mlp, small_cnn
from incrowd.learning.mapped.windows import WindowConv2d, convolve_windows
from incrowd.learning.paths import autograd
from incrowd.learning.paths.path import MakePath
from incrowd.learning.paths.together import training
from incrowd.learning.paths.together.trial import SideBySideTrial
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, assert_close, clients, trained
from tests.learning.own_models import CASES as OWN

HERE: tuple[MakePath, ...] = (training.make, autograd.make)
COHORT = range(len(SIZES))
LOCALS: dict[str, dict[str, Any]] = {
    "batches of 10": {"batch_size": 10, "epochs": 2},
    "three batches": {"batches": 3},
    "all at once": {"epochs": 3},
    "momentum": {"batch_size": 7, "momentum": 0.9},
    "all terms": {"batches": 2, "momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3},
    "label shares": {"batch_size": 10, "label_shares": 0.1},
}
MODELS: dict[str, Callable[[], Model]] = {
    "perceptron": lambda: mlp((FEATURES, 17, CLASSES)),
    "layer norm": lambda: Model(
        nn.Sequential(nn.Linear(FEATURES, 9), nn.LayerNorm(9), nn.Softplus(), nn.Linear(9, CLASSES)), fresh=True
    ),
}


def names(engine: CohortEngine) -> list[str]:
    return [type(path).__name__ for path in engine.paths]


@pytest.fixture
def to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a processor do it although it rounds by place: what is computed is the same to rounding."""
    monkeypatch.setattr(SideBySideTrial, "_check_places", lambda *_: None)


@pytest.mark.usefixtures("to_rounding")
@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("steps", LOCALS)
@pytest.mark.parametrize("model", MODELS)
def test_clients_side_by_side_learn_what_one_alone_learns(model: str, steps: str, chunk: int) -> None:
    one, data, local = MODELS[model](), clients(), Local(learning_rate=0.3, **LOCALS[steps])
    engine = CohortEngine(one, data, local, Execution(chunk=chunk), paths=HERE)
    assert names(engine) == ["Together"]
    weights = one.initial(RANDOMNESS)
    found = trained(engine, weights, COHORT)
    assert_close(found, trained(CohortEngine(one, data, local, paths=[autograd.make]), weights, COHORT))


LEFT_ALONE = {
    "LSTM on tokens": "batching rule|vmap",
    "torch's loss": "",
    "dropout": "",
}


@pytest.mark.usefixtures("to_rounding")
@pytest.mark.parametrize("name", OWN)
def test_modules_of_all_kinds_learn_side_by_side_what_they_learn_alone(name: str) -> None:
    case, local = OWN[name], Local(learning_rate=0.2, batch_size=4, epochs=2)
    model, data = case.model(), case.clients((6, 4, 1, 9, 4))
    engine = CohortEngine(model, data, local, Execution(chunk=3), loss=case.loss, paths=HERE)
    assert names(engine) == (["Autograd"] if name in LEFT_ALONE else ["Together"])
    twin = CohortEngine(model, data, local, loss=case.loss, paths=[autograd.make])
    weights = model.initial(RANDOMNESS)
    assert_close(trained(engine, weights, range(5)), trained(twin, weights, range(5)))


def _pictures(side: int, count: int, *, channels: int = 1) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(3))


CONVOLUTIONS = {
    "plain": (nn.Conv2d(2, 3, 3), 7),
    "strides": (nn.Conv2d(2, 3, (3, 2), stride=(2, 3)), 9),
    "padding": (nn.Conv2d(2, 3, 5, padding=(2, 1)), 6),
    "all, without bias": (nn.Conv2d(2, 4, (2, 4), stride=2, padding=(0, 3), bias=False), 8),
    "one place": (nn.Conv2d(2, 3, 1), 4),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_by_windows_are_torch_s(name: str) -> None:
    layer, side = CONVOLUTIONS[name]
    pictures = _pictures(side, 4, channels=2).requires_grad_()
    expected = layer(pictures)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    wanted = torch.autograd.grad((expected * direction).sum(), [pictures, *layer.parameters()])
    copied = copy.deepcopy(nn.Sequential(layer))
    convolve_windows(copied)
    assert type(copied[0]) is WindowConv2d
    found = copied(pictures)
    gradients = torch.autograd.grad((found * direction).sum(), [pictures, *copied.parameters()])
    for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_odd_convolutions_are_left_to_torch() -> None:
    odd = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Conv1d(4, 4, 3),
    )  # fmt: skip
    before = [type(layer) for layer in odd]
    convolve_windows(odd)
    assert [type(layer) for layer in odd] == before


@pytest.mark.usefixtures("to_rounding")
def test_convolutional_networks_learn_side_by_side_what_they_learn_alone() -> None:
    model = small_cnn(side=16)
    data = clients((12, 7, 9), seed=2)
    data = replace(data, features=_pictures(16, 28).squeeze(1).contiguous(), scale=1.0)
    local = Local(learning_rate=0.1, batch_size=5)
    engine = CohortEngine(model, data, local, Execution(chunk=2), paths=HERE)
    assert names(engine) == ["Together"]
    weights = model.initial(RANDOMNESS)
    twin = CohortEngine(model, data, local, paths=[autograd.make])
    assert_close(trained(engine, weights, range(3)), trained(twin, weights, range(3)))
