from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contest.works import WORKS, Task, Work, named, synthetic
from incrowd.errors import ConfigError, DataError
from tests.benchmarks.small import CNN, NORMED, PERCEPTRON, task


def test_operations_are_those_of_dense_training_without_the_gradient_for_the_input() -> None:
    found = {name: work.operations / 1e6 for name, work in WORKS.items()}
    assert found == pytest.approx(
        {"linear": 18.816, "mlp": 383.52, "mlp600": 1348.56, "cnn": 13378.8672, "normed": 383.52, "dense": 383.52}
        | {
            "own-cnn": 13378.8672,
            "cnn-gn": 3520.512,
            "transformer": 2361.6,
            "gru": 1314.6624,
            "lstm": 1752.1152,
            "head": 1603.584,
            "lora": 1561.6512,
        }
    )


def test_the_perceptrons_operations_are_counted_one_by_one() -> None:
    work = Work(name="tiny", widths=(4, 3, 2), cohort=1, examples=7)
    forward, weights, inputs = 2 * (4 * 3 + 3 * 2), 2 * (4 * 3 + 3 * 2), 2 * 3 * 2
    assert work.operations == 7 * (forward + weights + inputs)


def test_an_unknown_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="give one or several of linear, mlp, mlp600, cnn, normed, dense"):
        named("perceptron")
    assert named("mlp") is WORKS["mlp"]


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


def test_a_work_is_done_for_as_many_clients_and_examples_as_are_wanted() -> None:
    work = WORKS["cnn"].of(clients=50, examples=None)
    assert (work.cohort, work.examples, work.name) == (50, 600, "cnn")
    task = Task(work=WORKS["linear"].of(clients=3, examples=40), batch_size=10)
    assert [len(task.data.client(client)) for client in range(3)] == [40] * 3


@pytest.mark.slow
def test_dense_images_are_the_same_without_a_zero() -> None:
    dense, plain = (Task(work=WORKS[name], batch_size=10) for name in ("dense", "mlp"))
    assert dense.tensors[0].min() == pytest.approx(1 / 255)
    assert (dense.tensors[0] - plain.tensors[0]).abs().max() == pytest.approx(1 / 255)
    assert torch.equal(dense.tensors[1], plain.tensors[1])
    assert dense.rows(3, round=1).tolist() == plain.rows(3, round=1).tolist()


def test_every_example_of_a_client_comes_once_and_rounds_differ() -> None:
    one = task(batch_size=7)
    rows = one.rows(2, round=0)
    assert sorted(rows.tolist()) == sorted(one.data.client(2).tolist())
    assert rows.tolist() != one.rows(2, round=1).tolist()


@pytest.mark.parametrize("folder", [None, Path("data")])
@pytest.mark.parametrize("work", [PERCEPTRON, NORMED, CNN], ids=lambda work: work.name)
def test_a_task_is_the_same_after_being_sent(work: Work, folder: Path | None) -> None:
    one = Task(work=work, batch_size=7, folder=folder)
    assert Task.from_json(one.to_json()) == one
    assert hash(Task.from_json(one.to_json())) == hash(one)


def test_equal_tasks_have_equal_data_wherever_they_are() -> None:
    one, other = task(), Task.from_json(task().to_json())
    assert other.rows(1, round=3).tolist() == one.rows(1, round=3).tolist()
    assert torch.equal(other.start, one.start)


def test_synthetic_images_are_as_sparse_as_digits() -> None:
    images = synthetic()
    assert 0.17 < (images.features > 0).mean() < 0.21
    of_client = images.features[[*range(300), *range(30_000, 30_300)]]
    assert 480 < (of_client > 0).any(axis=0).sum() < 580
    assert np.bincount(images.labels).tolist() == [6000] * 10


def test_a_folder_without_mnist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train-images"):
        _ = Task(work=PERCEPTRON, batch_size=10, folder=tmp_path).data


def test_a_batch_size_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size = 0"):
        task(batch_size=0)
