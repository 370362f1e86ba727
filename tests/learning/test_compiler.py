"""What the compiler is given: places that are taken early, and attention written out, are the same numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from incrowd.learning.compiler import AttentionWeights, take_places_early, written_out

LENGTH, WIDTH = 7, 8
F = nn.functional


class Early:
    """The same function, its places taken early, or left, as torch calls it without compiling it."""

    def __init__(
        self, function: Callable[..., Any], *, take: Callable[[GraphModule], None] = take_places_early
    ) -> None:
        torch._dynamo.reset()
        self._take = take
        self._call: Any = torch.compile(function, fullgraph=True, dynamic=False, backend=self._backend)

    def __call__(self, *given: Tensor) -> Any:
        return self._call(*given)

    def _backend(self, traced: GraphModule, _: list[Tensor]) -> Any:
        self._take(traced)
        self.traced = traced

        def kept(*given: Any) -> Any:
            self.given = given
            return traced.forward(*given)

        return kept

    def operations(self) -> int:
        """Of the last call."""
        with FlopCounterMode(display=False) as counter:
            self.traced.forward(*self.given)
        return int(counter.get_total_flops())


def share(function: Callable[..., Any], x: Tensor) -> float:
    """How many of the operations are left; that the results are the same is checked."""
    early, plain = Early(function), Early(function, take=lambda _: None)
    found, expected = early(x), plain(x)
    if isinstance(found, Tensor):
        found, expected = {"": found}, {"": expected}
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)
    return early.operations() / plain.operations()


def examples(*shape: int) -> Tensor:
    return torch.randn(shape or (3, LENGTH, WIDTH), generator=torch.Generator().manual_seed(0))


def encoder(**how: Any) -> nn.TransformerEncoderLayer:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        settings_ = {"dropout": 0.0, "batch_first": True} | how
        return nn.TransformerEncoderLayer(WIDTH, 2, 16, **settings_).train()


def gradients(value: Callable[..., Tensor], module: nn.Module) -> Callable[[Tensor], dict[str, Tensor]]:
    """As a step has them."""
    parameters = {name: one.detach() for name, one in module.named_parameters()}

    def found(x: Tensor) -> dict[str, Tensor]:
        def of(now: dict[str, Tensor]) -> Tensor:
            return value(lambda *given: torch.func.functional_call(module, now, given), x).square().sum()

        computed: dict[str, Tensor] = torch.func.grad(of)(parameters)
        return computed

    return found


MASK = nn.Transformer.generate_square_subsequent_mask(LENGTH)


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ({}, 3),
        pytest.param({}, 0, marks=pytest.mark.slow),
        pytest.param({"norm_first": True}, -1, marks=pytest.mark.slow),
        pytest.param({"activation": "gelu"}, -1, marks=pytest.mark.slow),
        pytest.param({"bias": False}, -1, marks=pytest.mark.slow),
    ],
)
def test_an_encoder_computes_one_place_there_and_back(how: dict[str, Any], place: int) -> None:
    module, x = encoder(**how), examples()
    plain = gradients(lambda call, x: call(x)[:, place], module)
    assert share(plain, x) < 0.65


@pytest.mark.parametrize(("hint", "place"), [(False, 2), pytest.param(True, 2, marks=pytest.mark.slow), (True, -1)])
def test_a_place_sees_what_its_mask_lets_it_see(hint: bool, place: int) -> None:
    module, x = encoder(), examples()
    plain = gradients(lambda call, x: call(x, MASK, None, hint)[:, place], module)
    assert share(plain, x) < 0.65


def test_masks_of_each_head_stay_as_they_are() -> None:
    module, x = encoder(), examples()
    masks = MASK.expand(3 * 2, LENGTH, LENGTH)
    plain = gradients(lambda call, x: call(x, masks)[:, -1], module)
    assert 0.4 < share(plain, x) < 1  # all of the attention, and one place of the rest


ASKING = torch.randn(3 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(2))
NORM = torch.nn.LayerNorm((LENGTH, WIDTH))


def linear(x: Tensor) -> Tensor:
    return F.linear(x, ASKING[:WIDTH], ASKING[0])


@torch.library.custom_op("places::doubled", mutates_args={"x"})
def _doubled(x: Tensor) -> None:
    x.mul_(2)


IN_PLACE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a method": lambda h, _: h.add_(1),
    "an operator": lambda h, _: h.__iadd__(1),
    "an assignment": lambda h, _: h.__setitem__((slice(None), -1), 0.0),
    "a flag": lambda h, _: F.relu(h, inplace=True),
    "a flag by position": lambda h, _: F.silu(h, True),
    "several at once": lambda h, _: torch._foreach_mul_([h], 2.0),
    "an operation of one's own": lambda h, _: _doubled(h),
    "what is written into": lambda h, x: torch.add(x, 1, out=h),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_what_is_changed_in_place_stays_as_it_is(how: str) -> None:
    def function(x: Tensor) -> Tensor:
        h = linear(x)
        last = h[:, -1]
        IN_PLACE[how](h, x)
        return last

    x = examples()
    with torch.no_grad():
        expected, found = function(x), Early(function)(x)
        assert torch.equal(found, expected)
        assert share(function, x) == 1


def attended(x: Tensor, **how: Any) -> Tensor:
    """Torch's attention, as a function."""
    given: Any = [x, x, x, WIDTH, 2, ASKING, torch.zeros(3 * WIDTH), None, None, False, 0.0, torch.eye(WIDTH), None]
    found: Tensor = F.multi_head_attention_forward(*given, **how)[0]
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: linear(x)[..., -1],
        lambda x: linear(x)[:, None, -1],
        lambda x: linear(x)[True],
        lambda x: linear(x)[1, -1],
        lambda x: linear(x)[:, torch.tensor(2)],
        lambda x: NORM(x)[:, 2],
        lambda x: F.dropout(linear(x), 0.5, False)[:, 2],
        lambda x: (linear(x) + linear(x)[:, :1])[:, 2],
        lambda x: linear(x).view(-1, WIDTH)[2],
        lambda x: (x.size(1) * linear(x))[:, 2],
        lambda x: linear(x).unbind(0)[0][1],
        lambda x: torch.layer_norm(input=linear(x), normalized_shape=(WIDTH,))[:, 1],
        lambda x: attended(x)[1],
        lambda x: attended(x, need_weights=False)[:, 1],
    ],
)
def test_what_is_asked_or_computed_otherwise_is_the_same(function: Callable[[Tensor], Tensor]) -> None:
    x = examples()
    with torch.no_grad():
        assert torch.allclose(Early(function)(x), function(x), atol=1e-6)


def test_attention_that_draws_masks_draws_them_as_before() -> None:
    module, x = encoder(dropout=0.5), examples()

    def function(x: Tensor) -> Tensor:
        taken: Tensor = module(x)[:, -1]
        return taken

    quick = Early(function)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    assert torch.allclose(quick(x), expected, atol=1e-6)


LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: linear(x) if x.shape[-1] == WIDTH else x,
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "norm of two": lambda x: F.layer_norm(x, x.shape[-2:]),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "itself": lambda x: x * torch.tanh(x) - x,
    "swapped": lambda x: x.transpose(-1, 0),
    "turned": lambda x: x.transpose(0, 2),
    "mean": lambda x: x - x.mean(1, keepdim=True),
}


@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), max_size=6),
    dim=st.integers(0, 2),
    place=st.integers(-3, 2),
)
@settings(max_examples=10, deadline=None)
def test_any_place_of_any_layers_is_the_same(layers: list[str], dim: int, place: int) -> None:
    x = examples(3, WIDTH, WIDTH)

    def function(x: Tensor) -> Tensor:
        for name in layers:
            x = LAYERS[name](x)
        where: Any = (*[slice(None)] * dim, place)
        return x[where]

    with torch.no_grad():
        assert torch.allclose(Early(function)(x), function(x), atol=1e-5)


def weighed(queries: Tensor, places: int) -> tuple[AttentionWeights, Tensor]:
    """Torch's own attention with gradients, and what was seen of it."""
    queries = queries.clone().requires_grad_()
    keys, values = torch.randn(2, *queries.shape[:-2], places, queries.shape[-1])
    with AttentionWeights() as weights:
        found = scaled_dot_product_attention(queries, keys, values)
        torch.autograd.grad(found.sum(), queries)
    return weights, found


@pytest.mark.parametrize(("here", "there", "few"), [(3, 5, True), (256, 256, True), (256, 257, False)])
def test_attention_is_written_out_where_it_has_at_most_half_a_million_weights(here: int, there: int, few: bool) -> None:
    weights, _ = weighed(torch.randn(2, 4, here, 8), there)
    assert weights.most == 2 * 4 * here * there
    assert weights.few is few


def test_where_there_is_none_nothing_is_written_out() -> None:
    with AttentionWeights() as weights:
        nn.Linear(3, 3)(torch.ones(2, 3))
    assert not weights.few


@pytest.mark.parametrize("causal", [False, True])
def test_written_out_it_is_torch_s_but_for_rounding(causal: bool) -> None:
    given = torch.randn(3, 2, 4, 6, 8)

    def attention(parts: Tensor) -> Tensor:
        return scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=causal)

    with AttentionWeights() as weights:
        expected = attention(given)
    with AttentionWeights() as left:
        found = written_out(attention)(given)
    assert weights.most == 2 * 4 * 6 * 6
    assert left.most == 0  # of torch's own nothing is left
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(attention(given), expected)  # and later calls are as before
