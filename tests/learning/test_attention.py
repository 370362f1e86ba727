"""Attention written out for the compiler: the same numbers, and only where its weights are few."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from incrowd.learning.compiler import AttentionWeights, written_out


def attended(queries: Tensor, places: int) -> tuple[AttentionWeights, Tensor]:
    """Torch's own attention with gradients, and what was seen of it."""
    queries = queries.clone().requires_grad_()
    keys, values = torch.randn(2, *queries.shape[:-2], places, queries.shape[-1])
    with AttentionWeights() as weights:
        found = scaled_dot_product_attention(queries, keys, values)
        torch.autograd.grad(found.sum(), queries)
    return weights, found


@pytest.mark.parametrize(("here", "there", "few"), [(3, 5, True), (256, 256, True), (256, 257, False)])
def test_attention_is_written_out_where_it_has_at_most_half_a_million_weights(here: int, there: int, few: bool) -> None:
    weights, _ = attended(torch.randn(2, 4, here, 8), there)
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
