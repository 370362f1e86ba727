"""Every way to compute records' gradients, beside autograd on one record at a time and beside Opacus."""

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from incrowd.learning import Execution, Model
from incrowd.learning.dpsgd.engine import Records
from incrowd.learning.dpsgd.gradients import RecordGradients, squares_of
from incrowd.learning.dpsgd.selection import GradientSelection
from incrowd.learning.losses import Loss
from incrowd.privacy.mechanism.grid import FLOAT32_RECORDS
from tests.learning.dpsgd.cases import KINDS, one_of, start, training
from tests.reference.one_record import gradient

BATCH = [3, 0, 7, 11, 2]


def selected(kind: str, *, physical_batch: int = 40) -> tuple[RecordGradients, Model, Loss, Records]:
    make, loss, records, ways = KINDS[kind]
    model = make()
    gradients = GradientSelection(model, loss, records, Execution()).gradients(
        start(model), training(physical_batch=physical_batch)
    )
    assert isinstance(gradients, ways)
    return gradients, model, loss, records


def by_autograd(model: Model, loss: Loss, records: Records) -> Iterator[Tensor]:
    module = model.with_weights(start(model)).train()
    for row in BATCH:
        yield gradient(module, loss, records, row)


def by_opacus(model: Model, records: Records) -> Iterator[Tensor]:
    module = GradSampleModule(copy.deepcopy(model.with_weights(start(model)).train()), loss_reduction="mean")
    features, labels = records.take(torch.tensor(BATCH))
    loss = nn.functional.cross_entropy(module(features), labels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        loss.backward()  # type: ignore[no-untyped-call]  # torch says no types
    samples = [getattr(parameter, "grad_sample", torch.zeros(0)).flatten(1) for parameter in module.parameters()]
    yield from torch.cat(samples, 1)


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found.double() - expected.double()).norm() / expected.double().norm()) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_autograd_one_record_at_a_time(kind: str) -> None:
    gradients, model, loss, records = selected(kind)
    for row, expected in zip(BATCH, by_autograd(model, loss, records), strict=True):
        norm, total = one_of(gradients, records, BATCH, row)
        assert close(total, expected)
        assert norm == pytest.approx(float(expected.double().norm()), rel=1e-5)


@pytest.mark.parametrize("kind", ["perceptron", "images", "hyperbolic", "normalised", "shared path", "convolutions"])
def test_gradients_are_those_of_opacus(kind: str) -> None:
    gradients, model, _, records = selected(kind)
    for row, expected in zip(BATCH, by_opacus(model, records), strict=True):
        assert close(one_of(gradients, records, BATCH, row)[1], expected)


@pytest.mark.parametrize("kind", ["perceptron", "narrow convolutions", "normalised", "branching"])
@pytest.mark.parametrize("batch", [FLOAT32_RECORDS, FLOAT32_RECORDS + 1])
def test_a_sum_adds_up_begins_anew_and_leaves_out_what_is_not_finite(kind: str, batch: int) -> None:
    gradients, _, _, records = selected(kind)
    features, labels = records.take(torch.arange(gradients.rows).clamp(max=5))
    expected = [one_of(gradients, records, [row], row)[1].double() for row in range(4)]
    features = torch.as_tensor(features)
    features[4] = torch.nan
    factors = torch.tensor([1.0, 0.5, 0.0, 1e-3, 0.0], dtype=torch.float64)
    several = min(5, gradients.rows)
    once = sum((float(factor) * one for factor, one in zip(factors[:several], expected, strict=False)), torch.zeros(()))
    for _ in range(2):
        gradients.begin(batch)
        for times in (1, 2):
            finite = gradients.norms(features[:several], labels[:several]).isfinite().tolist()
            assert finite == [True] * 4 + [False] * (several - 4)
            gradients.add(factors[:several])
            assert close(gradients.total, times * once)
        assert gradients.total.dtype == (torch.float32 if batch <= FLOAT32_RECORDS else torch.float64)


def test_squares_do_not_leave_out_small_numbers() -> None:
    gradients = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    gradients[1:3] *= torch.tensor([[1e-3], [1e-15]])
    gradients[4, 7] = torch.nan
    torch.testing.assert_close(
        squares_of(gradients), gradients.double().square().sum(1), rtol=1e-12, atol=0, equal_nan=True
    )
