import pytest
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
