from dataclasses import replace

import pytest
import torch

from contest.works import WORKS, Task, Work
from tests.benchmarks.small import CNN, NORMED, PERCEPTRON


@pytest.mark.parametrize("name", ["cnn-gn", "transformer", "gru", "lstm"])
def test_a_network_of_a_work_is_the_same_everywhere(name: str) -> None:
    work = WORKS[name]
    made = Task(work=replace(work, cohort=2, examples=20), batch_size=10)
    examples, _ = made.tensors
    model, start = work.model(), torch.nn.utils.parameters_to_vector(work.module().parameters()).detach()
    assert torch.equal(made.start, Task(work=work, batch_size=100).start)
    torch.testing.assert_close(model.with_weights(start)(examples[:3]), work.module()(examples[:3]))
    assert len(made.data.client(1)) == 20


@pytest.mark.parametrize("work", [PERCEPTRON, NORMED, CNN], ids=lambda work: work.name)
def test_a_user_would_write_the_same_model(work: Work) -> None:
    model, module = work.model(), work.module()
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    images = torch.rand(3, 28, 28)
    torch.testing.assert_close(model.with_weights(start)(images), module(images))
