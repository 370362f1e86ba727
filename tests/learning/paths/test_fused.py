"""Stacks of Linear layers without autograd: what is between them, constant features, and the last layer in one loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from incrowd import Local
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, ClientTensors, CohortEngine, Loss, Model
from incrowd.learning.paths import fused
from incrowd.learning.paths.fused import loops
from incrowd.learning.paths.fused.layers import stack_of
from incrowd.learning.paths.fused.training import Fused
from incrowd.learning.store import Feed
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin, with_labels

LOCAL = Local(learning_rate=0.2, batch_size=6, epochs=2)
WIDTH = 70

Between = Callable[[], list[nn.Module]]

TAKEN: dict[str, Between] = {
    "norm": lambda: [nn.LayerNorm(WIDTH)],
    "gelu": lambda: [nn.GELU()],
    "gelu by tanh": lambda: [nn.GELU("tanh")],
    "silu": lambda: [nn.SiLU()],
    "norm, relu": lambda: [nn.LayerNorm(WIDTH), nn.ReLU()],
    "relu, norm": lambda: [nn.ReLU(), nn.LayerNorm(WIDTH)],
    "tanh, gelu, sigmoid": lambda: [nn.Tanh(), nn.GELU(), nn.Sigmoid()],
    "no gain": lambda: [nn.LayerNorm(WIDTH, elementwise_affine=False), nn.SiLU()],
    "no shift": lambda: [nn.LayerNorm(WIDTH, eps=0.5, bias=False), nn.GELU()],
    "norms of norms": lambda: [nn.LayerNorm(WIDTH), nn.SiLU(), nn.LayerNorm(WIDTH), nn.GELU("tanh")],
}

LEFT: dict[str, Between] = {
    "another norm": lambda: [nn.GroupNorm(7, WIDTH)],
    "a norm of rows": lambda: [nn.LayerNorm((1, WIDTH))],
    "another bend": lambda: [nn.GELU(), nn.ELU()],
    "bent twice": lambda: [nn.ReLU(), nn.Tanh()],
    "in place": lambda: [nn.LayerNorm(WIDTH), nn.SiLU(inplace=True)],
    "dropout": lambda: [nn.GELU(), nn.Dropout(0.1)],
}


def through(*between: nn.Module, outputs: int = CLASSES) -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, WIDTH), *between, nn.Linear(WIDTH, outputs)), fresh=True)


def drawn(model: Model) -> Tensor:
    """First weights in which gains and shifts are no ones and zeros."""
    weights = model.initial(RANDOMNESS)
    return weights + 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(2))


def learnt(model: Model, data: ClientTensors, local: Local = LOCAL, loss: Loss = CROSS_ENTROPY) -> None:
    """Everybody learns on this path what the slow twin learns."""
    everyone = range(data.present)
    engine = CohortEngine(model, data, local, loss=loss, paths=[fused.make])
    weights = drawn(model)
    assert_close(trained(engine, weights, everyone), twin(model, data, local, weights, everyone, loss=loss))


@pytest.mark.parametrize("steps", [{}, {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3}], ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_what_is_between_is_learnt_as_the_slow_twin_learns_it(name: str, steps: dict[str, float]) -> None:
    learnt(through(*TAKEN[name]()), clients((12, 8, 30)), LOCAL.replaced(**steps))  # 8: the last batch has 2


@pytest.mark.parametrize("name", LEFT)
def test_what_else_may_be_between_is_left_to_others(name: str) -> None:
    data = clients((3,))
    assert stack_of(through(*LEFT[name]()).module, CROSS_ENTROPY, data) is None
    assert stack_of(through(*TAKEN["norm"]()).module, CROSS_ENTROPY, data) is not None


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES)),
        nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.LayerNorm(CLASSES)),
        nn.Sequential(nn.Linear(FEATURES, CLASSES).requires_grad_(requires_grad=False), nn.Linear(CLASSES, CLASSES)),
        nn.Sequential(nn.Flatten()),
    ],
    ids=str,
)
def test_stacks_begin_and_end_with_a_linear_layer_and_are_trained_as_a_whole(module: nn.Module) -> None:
    assert stack_of(module, CROSS_ENTROPY, clients((3,))) is None


class Written(nn.Module):
    """A class with a forward of its own."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, WIDTH), nn.LayerNorm(WIDTH)
        self.second, self.third = nn.Linear(WIDTH, 9), nn.Linear(9, CLASSES)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.norm(self.first(x)), approximate=self.form)
        outputs: Tensor = self.third(functional.silu(self.second(x)))
        return outputs


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_a_class_with_norms_and_bends_goes_the_way_of_its_layers(form: str) -> None:
    learnt(Model(Written(form), fresh=True), clients((12, 7, 30)))


MAKES: dict[str, Callable[[int], nn.Module]] = {
    "norm": lambda width: nn.LayerNorm(width, eps=0.01),
    "relu": lambda _: nn.ReLU(),
    "gelu": lambda _: nn.GELU(),
    "tanh form": lambda _: nn.GELU("tanh"),
    "silu": lambda _: nn.SiLU(),
}


@settings(max_examples=40, deadline=None)
@given(
    widths=st.lists(st.integers(2, 80), min_size=1, max_size=3),
    kinds=st.lists(st.lists(st.sampled_from(sorted(MAKES)), max_size=3), min_size=3, max_size=3),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    batch=st.one_of(st.none(), st.integers(1, 80)),
    bias=st.booleans(),
    offset=st.sampled_from([0.0, -0.5]),
)
def test_any_stack_learns_what_the_slow_twin_learns(
    widths: list[int], kinds: list[list[str]], sizes: list[int], batch: int | None, bias: bool, offset: float
) -> None:
    layers: list[nn.Module] = []
    before = FEATURES
    for width, between in zip(widths, kinds, strict=False):
        alone = [kind for place, kind in enumerate(between) if between[place : place + 2] != ["relu", "relu"]]
        layers += [nn.Linear(before, width, bias=bias), *(MAKES[kind](width) for kind in alone)]
        before = width
    model = Model(nn.Sequential(*layers, nn.Linear(before, CLASSES, bias=bias)), fresh=True)
    data, local = clients(sizes, offset=offset), Local(learning_rate=0.05, batch_size=batch)
    everyone, weights = range(len(sizes)), drawn(model)
    found = trained(CohortEngine(model, data, local, paths=[fused.make]), weights, everyone)
    assert_close(found, twin(model, data, local, weights, everyone), tolerance=5e-4)


@numba.njit
def exponentials(x):  # type: ignore[no-untyped-def]  # as numba finds them
    return np.array([loops._exp(one) for one in x])


@pytest.mark.slow
def test_powers_of_e_are_close_and_what_is_no_number_stays_none() -> None:
    x = np.concatenate([np.linspace(-87, 88, 10_001), [-88, -np.inf, 89, np.inf, np.nan]]).astype(np.float32)
    found = exponentials(x)
    assert np.allclose(found[:10_001], np.exp(x[:10_001].astype(np.float64)), rtol=2.0**-20, atol=0)
    assert np.array_equal(found[10_001:], np.array([0, 0, np.inf, np.inf, np.nan], np.float32), equal_nan=True)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), width=st.integers(1, 70), far=st.sampled_from([0.0, 100.0]), odd=st.booleans())
def test_normalising_is_torch_s_and_so_is_its_way_back(rows: int, width: int, far: float, odd: bool) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    x, upstream = torch.randn(2, rows, width, generator=generator)
    x = x + far
    if odd:
        x[0, 0] = torch.inf
    gain, shift = torch.randn(2, width, generator=generator)
    exact = [one.double().requires_grad_() for one in (x, gain, shift)]
    expected = functional.layer_norm(exact[0], (width,), exact[1], exact[2], 0.01)
    found = torch.autograd.grad(expected, exact, upstream.double())
    out, d, numbers, of_gain, of_shift = (torch.full(one.shape, 7.0) for one in (x, x, x, gain, shift))
    scales = np.empty(rows, np.float32)
    loops.normalise(x.numpy(), gain.numpy(), shift.numpy(), 0.01, numbers.numpy(), scales, out.numpy())
    d.copy_(upstream)
    loops.denormalise(d.numpy(), gain.numpy(), numbers.numpy(), scales, of_gain.numpy(), of_shift.numpy())
    for one, other in zip((out, d, of_gain, of_shift), (expected, *found), strict=True):
        assert torch.allclose(one.double(), other.detach(), atol=3e-3 if far else 1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("loss", "labels"), [(LOGISTIC, 2), (SQUARED, 9), (POISSON, 4)], ids=lambda one: str(one)[:20])
def test_other_losses_end_in_the_same_loop(loss: Loss, labels: int) -> None:
    data = clients((12, 7, 30))
    data = with_labels(data, (data.labels % labels).float())
    learnt(through(nn.LayerNorm(WIDTH), nn.GELU(), outputs=1), data, LOCAL.replaced(learning_rate=0.01), loss)


def alone(outputs: int = CLASSES, *, bias: bool = True) -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, outputs, bias=bias)), fresh=True)


@pytest.mark.parametrize("steps", [{}, {"momentum": 0.5}, {"batch_size": None}], ids=str)
@pytest.mark.parametrize(("bias", "offset"), [(False, 0.0), (True, -0.5)])
def test_a_layer_alone_is_learnt_as_the_slow_twin_learns_it(steps: dict[str, float], bias: bool, offset: float) -> None:
    for data in (clients((12, 7, 30), real=True, offset=offset), clients((12, 7, 30), offset=offset)):
        learnt(alone(bias=bias), data, LOCAL.replaced(**steps))


# Features that are constant.


def with_constants(data: ClientTensors, *, each: float) -> ClientTensors:
    """Features that are zero in all of a client's examples get a number of their own there."""
    features = data.features.clone()
    for client in range(data.present):
        rows = torch.from_numpy(data.examples(client).astype(np.int64))
        dead = (features[rows] == 0).all(0)
        features[rows] += (dead * each * (1 + client)).to(features.dtype)
    return replace(data, features=features)


@pytest.mark.parametrize("steps", [{}, {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3}], ids=str)
@pytest.mark.parametrize(("bias", "width"), [(False, 8), (True, WIDTH)])
@pytest.mark.parametrize("kind", ["bytes", "numbers", "offset"])
def test_constant_features_are_learnt_as_the_slow_twin_learns_them(
    kind: str, width: int, bias: bool, steps: dict[str, float]
) -> None:
    data = clients((12, 7, 30, 1), real=kind == "numbers", offset=-0.3 if kind == "offset" else 0.0)
    data = with_constants(data, each={"bytes": 9.0, "numbers": -0.7, "offset": 0.0}[kind])
    module = nn.Sequential(nn.Linear(FEATURES, width, bias=bias), nn.ReLU(), nn.Linear(width, CLASSES))
    model, local = Model(module, fresh=True), LOCAL.replaced(learning_rate=0.1, **steps)
    engine = CohortEngine(model, data, local, paths=[fused.make])
    weights = drawn(model)
    assert_close(trained(engine, weights, range(4)), twin(model, data, local, weights, range(4)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("number", [2.0**-41, 1e-23, 1e-42])
def test_constants_whose_squares_are_nothing_are_learnt_too(number: float, bias: bool) -> None:
    data = clients((12, 7), real=True)
    features = data.features.clone()
    features[:, :8] = 0
    features[:, 3] = number
    module = nn.Sequential(nn.Linear(FEATURES, WIDTH, bias=bias), nn.GELU(), nn.Linear(WIDTH, CLASSES))
    learnt(Model(module, fresh=True), replace(data, features=features))


# Features that are nearly constant.


def with_rare(data: ClientTensors, *, usual: float) -> ClientTensors:
    """In each client's examples most features are `usual`, but for an example in twenty."""
    generator = np.random.default_rng(5)
    features = data.features.clone()
    exceptions = torch.from_numpy(generator.random(tuple(features.shape)) < 0.05)
    some = torch.from_numpy(generator.random(FEATURES) < 0.7)
    return replace(data, features=torch.where(some & ~exceptions, torch.tensor(usual).to(features.dtype), features))


def feeds_of(engine: CohortEngine, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whose feeds have rare features, as they come."""
    (path,) = engine.paths
    assert isinstance(path, Fused)
    found: list[bool] = []
    plain = path._store.feed

    def feed(*asked: Any) -> Feed:
        given = plain(*asked)
        found.append(given.rare is not None)
        return given

    monkeypatch.setattr(path._store, "feed", feed)
    return found


BODIES: dict[str, Callable[[bool], nn.Module]] = {
    "relu": lambda bias: nn.Sequential(nn.Linear(FEATURES, WIDTH, bias=bias), nn.ReLU(), nn.Linear(WIDTH, CLASSES)),
    "gelu": lambda bias: nn.Sequential(nn.Linear(FEATURES, WIDTH, bias=bias), nn.GELU(), nn.Linear(WIDTH, CLASSES)),
    "two": lambda bias: nn.Sequential(
        nn.Linear(FEATURES, WIDTH, bias=bias), nn.ReLU(), nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, CLASSES)
    ),
}


@pytest.mark.parametrize(("bias", "batch"), [(False, 7), (True, 45), (True, None)])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", ["zeros", "bytes", "numbers", "offset"])
def test_rare_features_are_learnt_as_the_slow_twin_learns_them(
    kind: str, body: str, bias: bool, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = clients((40, 17, 90, 3), real=kind == "numbers", dead=0.2, offset=-0.3 if kind == "offset" else 0.0)
    data = with_rare(data, usual={"zeros": 0.0, "bytes": 60.0, "numbers": -0.7, "offset": 0.0}[kind])
    model = Model(BODIES[body](bias), fresh=True)
    local = LOCAL.replaced(learning_rate=0.1, batch_size=batch)
    engine, weights = CohortEngine(model, data, local, paths=[fused.make]), drawn(model)
    with_some = feeds_of(engine, monkeypatch)
    assert_close(trained(engine, weights, range(4)), twin(model, data, local, weights, range(4)))
    assert with_some == [True, True, True, False]  # three examples tell nothing


def test_another_client_s_examples_do_not_decide_what_is_rare() -> None:
    model, found = Model(BODIES["relu"](True), fresh=True), []
    for usual in (9.0, 50.0):
        data = with_rare(clients((40, 30), dead=0.2), usual=9.0)
        data.features[data.indices[:40]] = with_rare(data, usual=usual).features[data.indices[:40]]
        for cohort in ([1], [0, 1], [1, 0], [1]):
            engine = CohortEngine(model, data, LOCAL, paths=[fused.make])
            found.append(trained(engine, model.initial(RANDOMNESS), cohort)[1])
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e30])
@pytest.mark.parametrize("usual", [0.0, -0.7])
def test_rare_numbers_that_are_none_are_not_lost(usual: float, number: float) -> None:
    data = with_rare(clients((40, 17), real=True, dead=0.2), usual=usual)
    row = data.features[data.indices[3]]
    row[row == usual] = number
    model = Model(BODIES["relu"](True), fresh=True)
    weights = drawn(model)
    engine = CohortEngine(model, data, LOCAL, paths=[fused.make])
    found, expected = trained(engine, weights, [0, 1]), twin(model, data, LOCAL, weights, [1])
    assert not np.isfinite(found[0]).all()
    assert_close({1: found[1]}, expected)
