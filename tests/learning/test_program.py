import pytest
import torch
from torch import nn

from incrowd.learning.program import dense_layers


@pytest.mark.parametrize(
    ("module", "shape", "layers"),
    [
        (nn.Sequential(nn.Linear(4, 2)), (4,), 1),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (2, 2), 2),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.Linear(2, 2)), (4,), 3),
    ],
)
def test_stacks_of_linear_layers_have_a_program(module: nn.Module, shape: tuple[int, ...], layers: int) -> None:
    found = dense_layers(module, shape)
    assert found is not None
    assert len(found) == layers


def test_a_product_without_the_old_value_ignores_what_the_memory_held() -> None:
    # What layers without a bias rely on: with beta=0 torch may not even look at the result's old value.
    for c, m, k, n in ((2, 2, 3, 4), (2, 10, 40, 5), (1, 1, 1, 1), (3, 60, 100, 70)):
        out, left, right = torch.full((c, m, n), torch.nan), torch.ones(c, m, k), torch.ones(c, k, n)
        torch.baddbmm(out, left, right, beta=0, alpha=0.5, out=out)
        assert torch.equal(out, torch.full((c, m, n), 0.5 * k))
