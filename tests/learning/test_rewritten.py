"""Layers written in another way compute what torch's compute, and so do their derivatives."""

import copy

import pytest
import torch
from torch import Tensor, nn

from incrowd.learning.rewritten import ProductEmbedding, WindowConv2d, convolve, look_up


def _pictures(side: int, count: int, *, channels: int) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(3))


CONVOLUTIONS = {
    "plain": (nn.Conv2d(2, 3, 3), 7),
    "strides": (nn.Conv2d(2, 3, (3, 2), stride=(2, 3)), 9),
    "padding": (nn.Conv2d(2, 3, 5, padding=(2, 1)), 6),
    "all, without bias": (nn.Conv2d(2, 4, (2, 4), stride=2, padding=(0, 3), bias=False), 8),
    "one place": (nn.Conv2d(2, 3, 1), 4),
    "dilated": (nn.Conv2d(2, 3, (2, 3), dilation=(2, 1), padding=1), 8),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_by_windows_are_torch_s(name: str) -> None:
    layer, side = CONVOLUTIONS[name]
    pictures = _pictures(side, 4, channels=2).requires_grad_()
    expected = layer(pictures)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    wanted = torch.autograd.grad((expected * direction).sum(), [pictures, *layer.parameters()])
    copied = copy.deepcopy(nn.Sequential(layer))
    convolve(copied)
    assert type(copied[0]) is WindowConv2d
    found = copied(pictures)
    gradients = torch.autograd.grad((found * direction).sum(), [pictures, *copied.parameters()])
    for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_windows_have_a_second_derivative_and_want_batches() -> None:
    layer = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1))
    convolve(layer.double())
    pictures = _pictures(6, 2, channels=2).double().requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (pictures,))
    with pytest.raises(ValueError, match="in batches"):
        layer(pictures[0])


def test_odd_convolutions_are_left_to_torch() -> None:
    odd = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Conv1d(4, 4, 3),
    )  # fmt: skip
    before = [type(layer) for layer in odd]
    convolve(odd)
    assert [type(layer) for layer in odd] == before


def test_tables_are_products_unless_something_else_is_wished_for() -> None:
    tables = nn.ModuleList([
        nn.Embedding(7, 3), nn.Embedding(7, 3, padding_idx=0), nn.Embedding(7, 3, max_norm=1.0),
        nn.Embedding(5000, 3), nn.Embedding(7, 3, sparse=True), nn.Embedding(7, 3).requires_grad_(False),
    ])  # fmt: skip
    rows = torch.tensor([[6, 0], [3, 3]])
    expected = tables[0](rows)
    look_up(tables)
    assert [type(one) is ProductEmbedding for one in tables] == [True] + [False] * 5
    assert torch.equal(tables[0](rows), expected)
