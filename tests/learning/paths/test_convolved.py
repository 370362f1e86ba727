"""Convolutions as matrix products and compiled loops learn what torch's learn."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from incrowd import Local
from incrowd.learning import ClientTensors, CohortEngine, Model, small_cnn
from incrowd.learning.convolved import loops, net
from tests.learning.cohorts import RANDOMNESS, assert_close, trained, twin

LOCAL = Local(learning_rate=0.1, batch_size=7, epochs=2)


def pictures(*shape: int, sizes: tuple[int, ...] = (9, 15), classes: int = 4) -> ClientTensors:
    generator = np.random.default_rng(0)
    count = sum(sizes)
    return ClientTensors(
        features=torch.from_numpy(generator.integers(0, 256, (count, *shape)).astype(np.uint8)),
        labels=torch.from_numpy(generator.integers(0, classes, count)),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        indices=generator.permutation(count),
        scale=1 / 255,
    )


def colours() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 5, 3, padding=1, stride=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(5, 7, 2, padding=1),
        nn.Flatten(),
        nn.Linear(7 * 4 * 4, 4),
    )


def many_channels() -> nn.Sequential:
    """Its second convolution takes back one by one what is not zero; its pooling leaves a row and a column out."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 11, 12)),
        nn.Conv2d(1, 22, 2),
        nn.Conv2d(22, 6, 3, padding=1),
        nn.MaxPool2d(3, stride=3),
        nn.ReLU(),
        nn.Conv2d(6, 8, 2),
        nn.MaxPool2d((2, 2)),
        nn.Flatten(),
        nn.Linear(8, 9, bias=False),
        nn.Tanh(),
        nn.Linear(9, 4),
    )


def normalised() -> nn.Sequential:
    """By groups with gain and shift, before and after a layer without; and without either."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.GroupNorm(3, 6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, bias=False),
        nn.GroupNorm(2, 8, eps=0.1),
        nn.Conv2d(8, 70, 2),
        nn.ReLU(),
        nn.Conv2d(70, 4, 1),
        nn.GroupNorm(1, 4, affine=False),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 4),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small cnn": (lambda: small_cnn(side=16, outputs=4).module, (16, 16)),
    "flat pictures": (lambda: small_cnn(side=16, outputs=4).module, (256,)),
    "colours": (colours, (3, 13, 13)),
    "many channels": (many_channels, (132,)),
    "normalised": (normalised, (2, 10, 10)),
    "many before": (lambda: nn.Sequential(nn.Conv2d(9, 3, 3), nn.Flatten(), nn.Linear(27, 4)), (9, 5, 5)),
}


@pytest.fixture(params=[2**19, 400], ids=["one block", "several blocks"], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "_BLOCK", request.param)


def engine(module: nn.Module, data: ClientTensors, local: Local = LOCAL, **others: object) -> CohortEngine:
    found = CohortEngine(Model(module, fresh=True), data, local, **others)  # type: ignore[arg-type]  # a loss
    assert [type(path).__name__ for path in found.paths] == ["Convolved"]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_clients_learn_what_the_slow_twin_learns(name: str) -> None:
    make, shape = MODELS[name]
    data = pictures(*shape)
    fast = engine(make(), data)
    weights = fast.model.initial(RANDOMNESS, init_scale=2.0)
    assert_close(trained(fast, weights, [0, 1]), twin(fast.model, data, LOCAL, weights, [0, 1]))


def some(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


def frozen() -> nn.Module:
    module = colours()
    module[3].weight.requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = colours()
    module[0].register_forward_hook(lambda *_: None)
    return module


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "groups": some(nn.Conv2d(3, 6, 3, groups=3)),
    "dilation": some(nn.Conv2d(3, 6, 3, dilation=2)),
    "oblong": some(nn.Conv2d(3, 6, (3, 2))),
    "margin by name": some(nn.Conv2d(3, 6, 3, padding="same")),
    "margin that reflects": some(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect")),
    "means": some(nn.Conv2d(3, 6, 3), nn.AvgPool2d(2)),
    "overlapping squares": some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(3, stride=2)),
    "squares beyond the edge": some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, ceil_mode=True)),
    "squares with a margin": some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, padding=1)),
    "pooled twice": some(nn.Conv2d(3, 6, 3), nn.MaxPool2d(2), nn.MaxPool2d(2)),
    "another bend": some(nn.Conv2d(3, 6, 3), nn.GELU()),
    "first a bend": some(nn.ReLU(), nn.Conv2d(3, 6, 3)),
    "normed": some(nn.Conv2d(3, 6, 3), nn.InstanceNorm2d(6)),
    "normed later": some(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.GroupNorm(2, 6)),
    "no convolution": some(),
    "no end": lambda: nn.Sequential(nn.Conv2d(3, 4, 13), nn.Flatten()),
    "another end": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Flatten(), nn.LazyLinear(4)),
    "weights of two": lambda: nn.Sequential(weight_norm(nn.Conv2d(3, 4, 13)), nn.Flatten(), nn.Linear(4, 4)),
    "frozen": frozen,
    "hooked": hooked,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_go_another_way(name: str) -> None:
    module = OTHERS[name]()
    module(torch.zeros(2, 3, 13, 13))  # lazy layers see how wide they are
    chosen = CohortEngine(Model(module, fresh=True), pictures(3, 13, 13), LOCAL)
    assert "Convolved" not in [type(path).__name__ for path in chosen.paths]


@pytest.mark.parametrize("changed", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"proximal": 0.1}])
def test_other_steps_go_another_way(changed: dict[str, float]) -> None:
    local = LOCAL.model_copy(update=changed)
    chosen = CohortEngine(small_cnn(side=16, outputs=4), pictures(16, 16), local)
    assert [type(path).__name__ for path in chosen.paths] == ["Autograd"]


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(4, 9), st.integers(4, 9))


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    pool=st.integers(1, 4),
    bent=st.booleans(),
    margin=st.integers(0, 2),
    of=st.sampled_from(["normals", "equals", "no number"]),
)
def test_pooling_is_torch_s_and_so_is_its_way_back(
    shape: tuple[int, int, int, int], pool: int, bent: bool, margin: int, of: str
) -> None:
    examples, channels, height, width = shape
    values = normals(*shape) if of == "normals" else normals(*shape).round()
    if of == "no number":
        values[0, 0, 1, 2] = torch.nan
    values.requires_grad_()
    bias = normals(channels, seed=1).requires_grad_()
    expected = functional.max_pool2d(values + bias[:, None, None], pool)
    expected = functional.relu(expected) if bent else expected
    rows, columns = expected.shape[2:]
    out = torch.zeros(examples, rows + 2 * margin, columns + 2 * margin, channels)
    which = np.empty((examples, rows, columns, channels), np.int32)
    given_ = values.detach().permute(0, 2, 3, 1).contiguous().numpy()
    loops.pooled(given_, bias.detach().numpy(), pool, int(bent), out.numpy(), margin, which)
    inner = out[:, margin : margin + rows, margin : margin + columns].permute(0, 3, 1, 2)
    assert torch.allclose(inner, expected, equal_nan=True)
    assert out.isnan().any() or torch.isclose(out.sum(), inner.sum(), atol=1e-4)  # nothing in the margin
    if of == "no number":
        return
    upstream = normals(*expected.shape, seed=2)
    expected.backward(upstream)  # type: ignore[no-untyped-call]  # torch does not say its types
    back = torch.zeros_like(out)
    back[:, margin : margin + rows, margin : margin + columns] = upstream.permute(0, 2, 3, 1)
    found, of_bias = torch.full((examples, height, width, channels), 7.0), torch.full((channels,), 7.0)
    args = (back.numpy(), out.numpy(), margin, which, pool, int(bent))
    loops.unpooled(*args, found.numpy(), of_bias.numpy())
    assert values.grad is not None
    assert bias.grad is not None
    assert torch.allclose(found.permute(0, 3, 1, 2), values.grad)
    assert torch.allclose(of_bias, bias.grad, atol=1e-4)
    live = net._room(which.size)
    again = torch.full((channels,), 7.0)
    count = loops.alive(*args, again.numpy(), live)
    assert torch.allclose(again, of_bias, atol=1e-4)
    listed = torch.zeros_like(found)
    for example, channel, row, column, gradient in zip(*(one[:count] for one in live), strict=True):
        listed[example, row, column, channel] = float(gradient)
    assert torch.equal(listed, found)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, size=st.integers(1, 4), stride=st.integers(1, 3), share=st.sampled_from([0.0, 0.2, 1.0]))
def test_gradients_one_by_one_are_those_of_a_convolution(
    shape: tuple[int, int, int, int], size: int, stride: int, share: float
) -> None:
    images, weight = normals(*shape).requires_grad_(), normals(5, shape[1], size, size, seed=1).requires_grad_()
    outputs = functional.conv2d(images, weight, stride=stride)
    upstream = normals(*outputs.shape, seed=2) * (torch.rand(outputs.shape) < share)
    outputs.backward(upstream)  # type: ignore[no-untyped-call]  # torch does not say its types
    where = upstream.nonzero()
    examples, channels, rows, columns = (one.to(torch.int32).numpy() for one in where.t())
    live = loops.Live(examples, channels, rows, columns, upstream[tuple(where.t())].numpy())
    together = images.detach().permute(0, 2, 3, 1).contiguous()
    own = weight.detach().permute(0, 2, 3, 1).reshape(5, -1).contiguous()
    back, into = torch.full_like(together, 7.0), own.clone()
    loops.spread(live, len(where), own.numpy(), size, stride, back.numpy())
    loops.gather(live, len(where), together.numpy(), size, stride, -0.5, into.numpy())
    assert images.grad is not None
    assert weight.grad is not None
    assert torch.allclose(back.permute(0, 3, 1, 2), images.grad, atol=1e-4)
    assert torch.allclose(into - own, -0.5 * weight.grad.permute(0, 2, 3, 1).reshape(5, -1), atol=1e-4)
