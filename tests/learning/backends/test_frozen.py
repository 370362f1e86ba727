"""Frozen layers at the beginning are computed once, alone, and nothing else changes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from incrowd import Local
from incrowd._random import Floats
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model, backends, lora
from incrowd.learning.backends.frozen import Frozen
from tests.learning.cohorts import assert_close, trained

LOCAL = Local(learning_rate=0.3, batch_size=5, epochs=2)
TOKENS, WORDS, CLASSES = 6, 12, 4


def clients(*sizes: int, seeds: tuple[int, ...] | None = None, tokens: bool = True) -> ClientTensors:
    several, labels = [], []
    for number, size in enumerate(sizes):
        generator = np.random.default_rng(number if seeds is None else seeds[number])
        drawn = generator.integers(0, WORDS, (size, TOKENS)) if tokens else generator.random((size, TOKENS), np.float32)
        several.append(drawn)
        labels.append(generator.integers(0, CLASSES, size))
    return ClientTensors(
        features=torch.from_numpy(np.concatenate(several)),
        labels=torch.from_numpy(np.concatenate(labels)),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        indices=np.arange(sum(sizes)),
    )


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)


def frozen(*layers: nn.Module) -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in layers]


def headed() -> nn.Sequential:
    """Its dropout is frozen, and so at rest."""
    torch.manual_seed(1)
    return nn.Sequential(*frozen(nn.Embedding(WORDS, 8), block()), nn.Flatten(), nn.Linear(8 * TOKENS, CLASSES))


def adapted() -> nn.Sequential:
    """Adapters in the second block; the first is nested, with the words."""
    below = nn.Sequential(*frozen(nn.Embedding(WORDS, 8), block()))
    above = lora(block().eval(), rank=2, on=("linear1", "linear2"))
    return nn.Sequential(below, above, nn.Flatten(), *frozen(nn.Linear(8 * TOKENS, CLASSES)))


def thawed() -> nn.Sequential:
    return nn.Sequential(*frozen(nn.Linear(TOKENS, 9)), nn.Tanh(), nn.Linear(9, 9), *frozen(nn.Linear(9, CLASSES)))


def resting() -> nn.Module:
    """Dropout within what is frozen is at rest, as all of that is."""
    return nn.Sequential(
        *frozen(nn.Sequential(nn.Linear(TOKENS, 9), nn.Dropout(0.5), nn.Linear(9, 9))), nn.Linear(9, CLASSES)
    )


def normed() -> nn.Module:
    """Means that were learnt elsewhere are frozen with the part that they are in."""
    return nn.Sequential(
        *frozen(nn.Sequential(nn.Linear(TOKENS, 9), nn.BatchNorm1d(9, affine=False))), nn.Linear(9, CLASSES)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "a layer twice": (lambda: again(nn.Tanh()), False),
    "a frozen layer twice": (lambda: again(*frozen(nn.Linear(9, 9))), False),
    "dropout at rest": (resting, False),
    "means of others": (normed, False),
    "head": (headed, True),
    "adapters": (adapted, True),
    "between": (thawed, False),
}


def engine(module: nn.Module, data: ClientTensors, local: Local = LOCAL, threads: int = 1) -> CohortEngine:
    return CohortEngine(Model(module), data, local, Execution(threads=threads))


def inside(one: CohortEngine) -> Frozen:
    (path,) = one.backends
    assert isinstance(path, Frozen)
    return path


def whole(fast: CohortEngine, data: ClientTensors, local: Local) -> dict[int, Floats]:
    slow = CohortEngine(fast.model, data, local, backends=[backends.loop.make])
    return trained(slow, fast.model.weights, [0, 1])


@pytest.mark.parametrize("name", MODELS)
def test_clients_learn_what_they_learn_through_the_whole_model(name: str) -> None:
    make, tokens = MODELS[name]
    data = clients(13, 40, tokens=tokens)
    fast = engine(make(), data)
    inside(fast)
    weights = fast.model.weights
    found = trained(fast, weights, [0, 1])
    assert_close(found, whole(fast, data, LOCAL))
    assert all(np.array_equal(again, found[k]) for k, again in trained(fast, weights, [0, 1]).items())


def test_the_frozen_layers_see_each_client_once() -> None:
    fast = engine(headed(), clients(13, 40, 3))
    path, seen = inside(fast), []
    path._frozen.register_forward_hook(lambda _module, inputs, _outputs: seen.append(len(inputs[0])))
    for _ in range(2):
        trained(fast, fast.model.weights, [0, 1])
    assert seen == [32, 32, 32]
    assert path._cache.there.tolist() == [1, 1, 0]
    assert path._cache.made[53:].isnan().all()
    assert path._cache.made[:53].isfinite().all()


class Counting(nn.Linear):
    """Frozen, and yet another function each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * self.calls


def hooked() -> nn.Module:
    module = thawed()
    module[0].register_forward_hook(lambda *_: None)
    return module


def dropping() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), *frozen(nn.Linear(TOKENS, 9)), nn.Linear(9, CLASSES))


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "all trained": lambda: nn.Sequential(nn.Linear(TOKENS, 9), nn.Linear(9, CLASSES)),
    "frozen at the end": lambda: nn.Sequential(nn.Linear(TOKENS, 9), *frozen(nn.Linear(9, CLASSES))),
    "no weights": lambda: nn.Sequential(nn.Tanh(), nn.Linear(TOKENS, CLASSES)),
    "somebody's own": lambda: nn.Sequential(*frozen(Counting(TOKENS, 9)), nn.Linear(9, CLASSES)),
    "hooked": hooked,
    "dropout before": dropping,
    "along the batch": lambda: nn.Sequential(
        *frozen(nn.Linear(TOKENS, 8), nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 1, 4)),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    ),
    "softmax of the batch": lambda: nn.Sequential(
        *frozen(nn.Linear(TOKENS, 9), nn.Softmax(0), nn.Linear(9, 9)), nn.Linear(9, CLASSES)
    ),
    "the batch in a row": lambda: nn.Sequential(*frozen(nn.Linear(TOKENS, 9)), nn.Flatten(0, 1), Rows(9, CLASSES)),
    "two results": lambda: nn.Sequential(*frozen(nn.LSTM(TOKENS, 9)), First(), nn.Linear(9, CLASSES)),
}


def again(layer: nn.Module) -> nn.Module:
    """A layer that comes twice."""
    return nn.Sequential(*frozen(nn.Linear(TOKENS, 9)), layer, nn.Linear(9, 9), layer, nn.Linear(9, CLASSES))


class Rows(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.view(-1, 9))


class First(nn.Module):
    def forward(self, several: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return several[0]


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_go_another_way(name: str) -> None:
    chosen = engine(OTHERS[name](), clients(9, tokens=False))
    assert not any(isinstance(path, Frozen) for path in chosen.backends)


@pytest.mark.parametrize("memory", [0, 4 * 8 * TOKENS * 20])
def test_what_is_not_kept_is_computed_again(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = clients(13, 40, 3)
    expected = trained(engine(headed(), data), engine(headed(), data).model.weights, range(3))
    monkeypatch.setattr(backends.frozen, "_MEMORY", memory)
    fast = engine(headed(), data)
    assert len(inside(fast)._cache.made) == (13 if memory else 0)
    for _ in range(2):
        found = trained(fast, fast.model.weights, range(3))
        assert all(np.array_equal(found[client], expected[client]) for client in range(3))


def test_a_client_with_too_many_examples_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.frozen, "_OF_ONE", 4 * 8 * TOKENS * 20)
    fast = engine(headed(), data := clients(13, 40, 20))
    assert [type(fast._choice.of(client)) is Frozen for client in range(3)] == [True, False, True]
    assert_close(trained(fast, fast.model.weights, [0, 1]), whole(fast, data, LOCAL))


def test_label_shares_are_those_of_the_client() -> None:
    data, local = clients(13, 40), LOCAL.model_copy(update={"label_shares": 0.1})
    fast = engine(headed(), data, local)
    assert_close(trained(fast, fast.model.weights, [0, 1]), whole(fast, data, local))
