import pytest
import torch

from contest.works import Work
from tests.benchmarks.small import CNN, NORMED, PERCEPTRON


@pytest.mark.parametrize("work", [PERCEPTRON, NORMED, CNN], ids=lambda work: work.name)
def test_a_user_would_write_the_same_model(work: Work) -> None:
    model, module = work.model(), work.module()
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    images = torch.rand(3, 28, 28)
    torch.testing.assert_close(model.with_weights(start)(images), module(images))
