"""The compiled backend: what it takes is learnt as a plain loop learns it; what it cannot do is left to others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from incrowd import Local
from incrowd.learning import (
    CROSS_ENTROPY,
    LOGISTIC,
    POISSON,
    SQUARED,
    ClientTensors,
    CohortEngine,
    Loss,
    Model,
    machine_code,
    small_cnn,
)
from incrowd.learning.backends import fast
from incrowd.learning.backends.fast import kernel, memory, rows
from incrowd.learning.backends.fast.memory import layers_of
from incrowd.learning.warm_up import main
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin, with_labels

pytestmark = pytest.mark.timeout(600)  # the first test may have to wait for machine code

LOCAL = Local(learning_rate=0.1, batch_size=7, epochs=2)
TERMS = {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3}
OUTPUTS = 4


def learnt(module: nn.Module, data: ClientTensors, local: Local = LOCAL, loss: Loss = CROSS_ENTROPY) -> None:
    """Each client learns what a plain loop teaches it."""
    model, everyone = Model(module, fresh=True), range(data.present)
    weights = model.initial(RANDOMNESS)
    weights = weights + 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(2))
    engine = CohortEngine(model, data, local, loss=loss, backends=[fast.make])
    assert_close(trained(engine, weights, everyone), twin(model, data, local, weights, everyone, loss=loss))


# Stacks of Linear layers.

BETWEEN: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
}
BENDS = (nn.ReLU, nn.Tanh, nn.Sigmoid)  # whatever activation comes next would change this output


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(5, 80), max_size=3),
    kinds=st.lists(st.lists(st.sampled_from(sorted(BETWEEN)), max_size=3), min_size=3, max_size=3),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    batch=st.one_of(st.none(), st.integers(1, 80)),
    terms=st.sampled_from([{}, {}, *({name: value} for name, value in TERMS.items()), TERMS]),
    held=st.tuples(st.booleans(), st.sampled_from([0.0, -0.3]), st.sampled_from([0.0, 0.3, 0.9])),
    bias=st.booleans(),
)
def test_any_stack_of_linear_layers_is_learnt(
    widths: list[int], kinds: list[list[str]], sizes: list[int], batch: int | None, terms: dict[str, float],
    held: tuple[bool, float, float], bias: bool,
) -> None:  # fmt: skip
    real, offset, dead = held
    layers, before = list[nn.Module](), FEATURES
    for width, between in zip(widths, kinds, strict=False):
        layers.append(nn.Linear(before, width, bias=bias))
        for name in between:
            if type(layers[-1]) not in BENDS:
                layers.append(BETWEEN[name](width))
        before = width
    data = clients(sizes, real=real, offset=offset, dead=dead)
    module = nn.Sequential(*layers, nn.Linear(before, CLASSES, bias=bias))
    learnt(module, data, LOCAL.replaced(learning_rate=0.05, batch_size=batch, **terms))


@pytest.mark.parametrize(("loss", "labels"), [(LOGISTIC, 2), (SQUARED, 9), (POISSON, 4)], ids=lambda one: str(one)[:20])
def test_other_losses_are_learnt(loss: Loss, labels: int) -> None:
    for dead in (0.0, 0.9):
        data = clients((12, 7, 30), dead=dead)
        data = with_labels(data, (data.labels % labels).float())
        layers = nn.Linear(FEATURES, 70), nn.Tanh(), nn.Linear(70, 1)
        learnt(nn.Sequential(*layers), data, LOCAL.replaced(learning_rate=0.05), loss)


# Convolutions.


def pictures(*shape: int, sizes: tuple[int, ...] = (9, 15)) -> ClientTensors:
    generator, count = np.random.default_rng(0), sum(sizes)
    return ClientTensors(
        features=torch.from_numpy(generator.integers(0, 256, (count, *shape)).astype(np.uint8)),
        labels=torch.from_numpy(generator.integers(0, OUTPUTS, count)),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        indices=generator.permutation(count),
        scale=1 / 255,
    )


def colours() -> nn.Sequential:
    first = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 5, 3, padding=2, stride=2, bias=False), nn.Sigmoid(), nn.Conv2d(5, 7, 2, padding=1)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(7 * 5 * 5, OUTPUTS))


def several() -> nn.Sequential:
    first = nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, bias=False), nn.Tanh()
    second = nn.Conv2d(8, 70, 2), nn.ReLU(), nn.Conv2d(70, 4, 1), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(4, OUTPUTS))


def pooled() -> nn.Sequential:
    """Its pooling leaves a row and a column out; its last picture is one pixel."""
    first = nn.Unflatten(1, (1, 11, 12)), nn.Conv2d(1, 22, 2), nn.MaxPool2d(2), nn.MaxPool2d(2, stride=2)
    rest = nn.Linear(9, 9, bias=False), nn.Tanh(), nn.Linear(9, OUTPUTS)
    return nn.Sequential(*first, nn.Conv2d(22, 9, 2), nn.Flatten(), *rest)


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small cnn": (lambda: small_cnn(side=16, outputs=OUTPUTS).module, (16, 16)),
    "flat pictures": (lambda: small_cnn(side=16, outputs=OUTPUTS).module, (256,)),
    "colours": (colours, (3, 13, 13)),
    "several": (several, (2, 10, 10)),
    "one pixel": (pooled, (132,)),
}


@pytest.mark.parametrize("terms", [{}, TERMS], ids=["plain", "all terms"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_learnt(name: str, terms: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = CONVOLUTIONS[name]
    for together in (20, 3):
        monkeypatch.setattr(memory, "_EXAMPLES", together)
        learnt(make(), pictures(*shape), LOCAL.replaced(**terms))


def some(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(OUTPUTS))


def frozen() -> nn.Module:
    module = colours()
    module[3].weight.requires_grad_(False)
    return module


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "groups": lambda: some(nn.Conv2d(3, 6, 3, groups=3)),
    "dilation": lambda: some(nn.Conv2d(3, 6, 3, dilation=2)),
    "oblong": lambda: some(nn.Conv2d(3, 6, (3, 2))),
    "padding by name": lambda: some(nn.Conv2d(3, 6, 3, padding="same")),
    "padding that reflects": lambda: some(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect")),
    "means": lambda: some(nn.Conv2d(3, 6, 3), nn.AvgPool2d(2)),
    "overlapping squares": lambda: some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(3, stride=2)),
    "squares beyond the edge": lambda: some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, ceil_mode=True)),
    "squares with padding": lambda: some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, padding=1)),
    "an activation of an activation": lambda: some(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Tanh()),
    "another activation": lambda: some(nn.Conv2d(3, 6, 3), nn.GELU()),
    "dropout": lambda: some(nn.Conv2d(3, 6, 3), nn.Dropout(0.1)),
    "first an activation": lambda: some(nn.ReLU(), nn.Conv2d(3, 6, 3)),
    "a norm": lambda: some(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6)),
    "no layer": lambda: nn.Sequential(nn.Flatten()),
    "last an activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(507, OUTPUTS), nn.Tanh()),
    "frozen": frozen,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_left_to_others(name: str) -> None:
    module, data = OTHERS[name](), pictures(3, 13, 13)
    module(torch.zeros(2, 3, 13, 13))  # lazy layers see how wide they are
    assert layers_of(module, CROSS_ENTROPY, data.features, data.labels) is None
    assert layers_of(colours(), CROSS_ENTROPY, data.features, data.labels) is not None
    assert layers_of(colours(), SQUARED, data.features, torch.zeros(24, 2)) is None


# Whose zeros are skipped, and numbers that are none.


def test_whose_zeros_are_skipped_is_decided_by_its_own_examples() -> None:
    generator = np.random.default_rng(0)
    shares = np.repeat([0.3, 0.9, 0.5], 100)[:, None]
    features = (generator.random((300, 10)) < shares).astype(np.uint8)
    data = ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.zeros(300, dtype=torch.int64),
        offsets=np.array([0, 100, 200, 300]),
        indices=np.arange(300),
    )
    for width, expected in ((5, [True, False, True]), (90, [True, False, False])):
        model = Model(nn.Linear(10, width))
        (path,) = CohortEngine(model, data, LOCAL, backends=[fast.make]).backends
        assert path._sparse.tolist() == expected  # type: ignore[attr-defined]  # it is this backend


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e30])
@pytest.mark.parametrize("dead", [0.0, 0.9])
def test_numbers_that_are_none_are_not_lost_and_do_not_reach_the_next_client(dead: float, number: float) -> None:
    data = clients((40, 17), real=True, dead=dead)
    plain = replace(data, features=data.features.clone())
    data.features[data.indices[3]] = number
    model = Model(nn.Sequential(nn.Linear(FEATURES, 70), nn.Tanh(), nn.Linear(70, CLASSES)), fresh=True)
    weights = model.initial(RANDOMNESS)
    one, other = (CohortEngine(model, some, LOCAL, backends=[fast.make]) for some in (data, plain))
    found = trained(one, weights, [0, 1])
    assert not np.isfinite(found[0]).all() or number == 1e30
    assert np.array_equal(found[1], trained(other, weights, [1])[1])


# Machine code.


def test_machine_code_is_made_ahead_of_its_use(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert capsys.readouterr().out.startswith("compiled loops: ready after ")


def test_a_digest_follows_every_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "b.py").write_text("two")
    before = machine_code.digest_of(tmp_path)
    assert machine_code.digest_of(tmp_path) == before
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("six")  # as long as before
        after = machine_code.digest_of(tmp_path)
        assert after != before
        before = after
    loop: Any = kernel.train
    assert loop._cache._cache_file._source_stamp == machine_code.stamp_of(kernel.__file__)
    assert machine_code.stamp_of(kernel.__file__).endswith(machine_code.digest_of(Path(kernel.__file__).parent))


def test_powers_of_e_are_close_and_what_is_no_number_stays_none() -> None:
    x = np.concatenate([np.linspace(-87, 88, 10_001), [-88, -np.inf, 89, np.inf, np.nan]]).astype(np.float32)
    found = np.array([rows.exp.py_func(one) for one in x], np.float32)  # type: ignore[attr-defined]  # numba keeps it there
    assert np.allclose(found[:10_001], np.exp(x[:10_001].astype(np.float64)), rtol=2.0**-20, atol=0)
    assert np.array_equal(found[10_001:], np.array([0, 0, np.inf, np.inf, np.nan], np.float32), equal_nan=True)
